-- release.lua: deletes a lock that its owner holds, and nothing else; then tells the first who waits for it.
--
-- KEYS[1]  lock key
-- KEYS[2]  waiting list
-- KEYS[3]  turn
-- KEYS[4]  fencing counter, of an owner whose fencing token was raised
-- ARGV[1]  owner token
-- and with a counter:
-- ARGV[2]  fencing token of the owner, a whole number below 2^53
-- ARGV[3]  life of the counter, whole milliseconds; 0 for no end
-- and then, where the client has had part in the waiting list, whether or not there is a counter:
-- client
-- when another call of the client began that goes on, microseconds since 1970; without it the client leaves
-- life of the waiting list, whole milliseconds: to enter that call. Without it, that call's acquire follows.
-- and with it "1" if the client is told of releases over this connection, "0" if it only asks again
--
-- Returns 1 if deleted, 0 if gone already or someone else's.
--
-- A key of another type is not ours either. Harmless when repeated, and when it arrives late: the token of another
-- round is another one.
local at = KEYS[4] and 3 or 1
local client, since, life, told = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
local found = KEYS[4] and redis.call("MGET", KEYS[1], KEYS[3], KEYS[4]) or redis.call("MGET", KEYS[1], KEYS[3])
local owner, turn, counter = found[1], found[2], found[3]
local deleted = 0
if owner == ARGV[1] then
  -- The raise may not have come here. Never without our key, as in raise.lua; and never where there is no counter: that
  -- would tell the next one that this node remembers.
  if counter and #counter <= 16 and string.find(counter, "^%d+$") and tonumber(counter) < tonumber(ARGV[2]) then
    if ARGV[3] == "0" then
      redis.pcall("SET", KEYS[4], ARGV[2])
    else
      redis.pcall("SET", KEYS[4], ARGV[2], "PX", ARGV[3])
    end
  end
  deleted = redis.call("DEL", KEYS[1])
end
if not turn and not life then
  return deleted
end

-- include turn.lua
local me, whose = client or "", turn and read_turn(turn, KEYS[2]) or ""
if life then
  enter(KEYS[2], KEYS[3], me, since, life, told, whose)
elseif me ~= "" and not since then
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
  offer(KEYS[1], KEYS[2], KEYS[3], me, tonumber(since) or math.huge)
else
  end_turn(KEYS[2], KEYS[3])
end
return deleted
