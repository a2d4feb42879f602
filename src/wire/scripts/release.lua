-- release.lua: deletes a lock that its owner holds, and no other; then reserves it for the first client that waits.
--
-- KEYS[1]  lock key
-- KEYS[2]  waiting list
-- KEYS[3]  reservation
-- KEYS[4]  fencing counter, only if the owner's fencing token was raised
-- ARGV[1]  owner token
-- then, with a counter:
-- ARGV[2]  fencing token of the owner, a whole number below 2^53
-- ARGV[3]  life of the counter, whole milliseconds; 0 for no end
-- then, if the client may be in the waiting list, with or without a counter:
-- client id; the member of the list, if the call wants to read
-- when the call began that goes on waiting for the client, microseconds since 1970; absent if the client leaves the list
-- life of the waiting list, whole milliseconds, to enter that call; absent if that call's acquire follows
-- with the life: "1" if the client is notified of releases over this connection, "0" if it polls
--
-- Returns 1 if deleted, 0 if already gone or another owner's.
--
-- A key of another type is not ours. Harmless if it is repeated or arrives late: every round has an owner token of its
-- own.
local at = KEYS[4] and 3 or 1
local client, since, life, told = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
local found = KEYS[4] and redis.call("MGET", KEYS[1], KEYS[3], KEYS[4]) or redis.call("MGET", KEYS[1], KEYS[3])
local owner, reservation, counter = found[1], found[2], found[3]
local deleted = 0
if owner == ARGV[1] then
  -- The raise may not have reached this node. Never without our key and never without a counter, as in raise.lua.
  if counter then
    -- include counter.lua
    raise_counter(KEYS[4], counter, ARGV[2], ARGV[3])
  end
  deleted = redis.call("DEL", KEYS[1])
end
if not reservation and not life then
  return deleted
end

-- include reservation.lua
local me, reserved_for, left, began = client or "", "", 0, 0
if reservation then
  reserved_for, left, began = read_reservation(reservation, KEYS[2])
end
if life then
  enter(KEYS[2], KEYS[3], me, since, life, told, reserved_for)
elseif me ~= "" and not since then
  redis.pcall("ZREM", KEYS[2], me)
end
local others = reserved_for_others(reserved_for, me)
if owner == SHARED and (others == "" or string.sub(others, 1, 1) == "*") then
  -- A writer that left may have been all that stood before readers.
  reserve(KEYS[1], KEYS[2], KEYS[3], "", math.huge, others)
  return deleted
end
if others ~= "" then
  if others ~= reserved_for then
    set_reservation(KEYS[3], string.format("%.0f %s %.0f", millis() + left, others, began))
  end
  -- The lock stays reserved for clients that were notified. If the list is empty, only this reservation needs to live.
  if redis.pcall("EXISTS", KEYS[2]) == 0 then
    redis.pcall("PEXPIRE", KEYS[3], RESERVATION)
  end
  return deleted
end
if deleted == 1 or not owner then
  reserve(KEYS[1], KEYS[2], KEYS[3], me, tonumber(since) or math.huge)
else
  end_reservation(KEYS[2], KEYS[3])
end
return deleted
