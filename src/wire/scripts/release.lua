-- release.lua: deletes a lock that its owner holds, and nothing else; then tells the first who waits for it.
--
-- KEYS[1]  lock key
-- KEYS[2]  waiting list
-- KEYS[3]  turn
-- ARGV[1]  owner token
-- and where the client has had part in the waiting list:
-- ARGV[2]  client
-- ARGV[3]  when another call of the client began that goes on, microseconds since 1970; without it the client leaves
-- ARGV[4]  life of the waiting list, whole milliseconds: to enter that call. Without it, that call's acquire follows.
-- ARGV[5]  and with it "1" if the client is told of releases over this connection, "0" if it only asks again
--
-- Returns 1 if deleted, 0 if gone already or someone else's.
--
-- A key of another type is not ours either. Harmless when repeated, and when it arrives late: the token of another
-- round is another one.
local found = redis.call("MGET", KEYS[1], KEYS[3])
local owner, turn = found[1], found[2]
local deleted = 0
if owner == ARGV[1] then
  deleted = redis.call("DEL", KEYS[1])
end
if not turn and not ARGV[4] then
  return deleted
end

-- include turn.lua
local me, whose = ARGV[2] or "", turn and read_turn(turn, KEYS[2]) or ""
if ARGV[4] then
  enter(KEYS[2], KEYS[3], me, ARGV[3], ARGV[4], ARGV[5], whose)
elseif me ~= "" and not ARGV[3] then
  redis.pcall("ZREM", KEYS[2], me)
end
if whose ~= "" and whose ~= me then
  -- Somebody has been told and is about to come. If nobody waits behind him, his turn is all that there is to keep.
  if redis.pcall("EXISTS", KEYS[2]) == 0 then
    redis.pcall("PEXPIRE", KEYS[3], TURN)
  end
  return deleted
end
if deleted == 1 or not owner then
  offer(KEYS[1], KEYS[2], KEYS[3], me, tonumber(ARGV[3]) or math.huge)
else
  end_turn(KEYS[2], KEYS[3])
end
return deleted
