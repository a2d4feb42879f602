-- release_slots.lua: deletes the slots of a semaphore that their owner has, but for one that it keeps; then reserves a free
-- one for the first client that waits.
--
-- KEYS[1]       slot keys, n of them
-- KEYS[n + 1]   fencing counters, in the same order
-- KEYS[2n + 1]  reservation
-- KEYS[2n + 2]  waiting list
-- ARGV[1]  owner token
-- ARGV[2]  the slot that it keeps, from 1; 0 for none
-- ARGV[3]  fencing token of the owner if it was raised, a whole number below 2^53; empty if not
-- ARGV[4]  life of the counters, whole milliseconds; 0 for no end
-- then, if the client may be in the waiting list, as in release.lua:
-- ARGV[5]  client id
-- ARGV[6]  when the call began that goes on waiting for the client, microseconds since 1970; absent if the client leaves
-- ARGV[7]  life of the waiting list, whole milliseconds, to enter that call; absent if that call's acquire follows
-- ARGV[8]  with the life: "1" if the client is notified of releases over this connection, "0" if it polls
--
-- Returns 1 if one was deleted, 0 if none was its owner's.
local n = (#KEYS - 2) / 2
local list, key, keep = KEYS[2 * n + 2], KEYS[2 * n + 1], tonumber(ARGV[2])
local me, since, life, told = ARGV[5] or "", ARGV[6], ARGV[7], ARGV[8]
local found = redis.call("MGET", unpack(KEYS, 1, n))
local reservation = redis.pcall("GET", key)
reservation = type(reservation) == "string" and reservation
local deleted, is_free = 0, false
for i = 1, n do
  if found[i] == ARGV[1] and i ~= keep then
    if ARGV[3] ~= "" then
      -- As in release.lua.
      -- include counter.lua
      raise_counter(KEYS[n + i], redis.pcall("GET", KEYS[n + i]), ARGV[3], ARGV[4])
    end
    redis.call("DEL", KEYS[i])
    deleted, is_free = 1, true
  end
  is_free = is_free or not found[i]
end
if not reservation and not life then
  return deleted
end

-- include reservation.lua
local reserved_for = reservation and read_reservation(reservation, list) or ""
if life then
  enter(list, key, me, since, life, told, reserved_for)
elseif me ~= "" and not since then
  redis.pcall("ZREM", list, me)
end
if reserved_for ~= "" and reserved_for ~= me then
  if redis.pcall("EXISTS", list) == 0 then
    redis.pcall("PEXPIRE", key, RESERVATION)
  end
elseif is_free then
  reserve(KEYS[1], list, key, me, tonumber(since) or math.huge)
else
  end_reservation(list, key)
end
return deleted
