-- release_many.lua: deletes those of several locks that their owner holds; then reserves each for the first client that
-- waits for it.
--
-- KEYS[1]       lock keys, n of them
-- KEYS[n + 1]   fencing counters, in the same order, as all that follows
-- KEYS[2n + 1]  reservations
-- KEYS[3n + 1]  waiting lists
-- ARGV[1]  owner token
-- ARGV[2]  fencing token of the owner if it was raised, a whole number below 2^53; empty if not
-- ARGV[3]  life of the counters, whole milliseconds; 0 for no end
-- then, if the client may be in a waiting list:
-- ARGV[4]  client id
-- ARGV[5]  when the call began that goes on waiting for the client, microseconds since 1970; absent if the client leaves
-- ARGV[6]  life of the waiting list, whole milliseconds, to enter that call; absent if that call's acquire follows
-- ARGV[7]  with the life: the number of the lock in whose list it enters
-- ARGV[8]  with the life: "1" if the client is notified of releases over this connection, "0" if it polls
--
-- Returns 1 if all were deleted, 0 if one was already gone or another owner's.
local n = #KEYS / 4
local me, since, life, way = ARGV[4] or "", ARGV[5], ARGV[6], tonumber(ARGV[7])
local found = redis.call("MGET", unpack(KEYS, 1, 3 * n))
local owned, waited_for = {}, life ~= nil
for i = 1, n do
  if found[i] == ARGV[1] then
    owned[#owned + 1] = KEYS[i]
    if ARGV[2] ~= "" then
      -- As in release.lua.
      -- include counter.lua
      raise_counter(KEYS[n + i], found[n + i], ARGV[2], ARGV[3])
    end
  end
  waited_for = waited_for or found[2 * n + i]
end
if #owned > 0 then
  redis.call("DEL", unpack(owned))
end
local all = #owned == n and 1 or 0
if not waited_for then
  return all
end

-- include reservation.lua
for i = 1, n do
  local lock, key, list, reservation = KEYS[i], KEYS[2 * n + i], KEYS[3 * n + i], found[2 * n + i]
  local enters = life and i == way
  if reservation or enters then
    local reserved_for = reservation and read_reservation(reservation, list) or ""
    if enters then
      enter(list, key, me, since, life, ARGV[8], reserved_for)
    elseif me ~= "" and (life or not since) then
      redis.pcall("ZREM", list, me)
    end
    if reserved_for ~= "" and reserved_for ~= me then
      if redis.pcall("EXISTS", list) == 0 then
        redis.pcall("PEXPIRE", key, RESERVATION)
      end
    elseif not found[i] or found[i] == ARGV[1] then
      local comes_before = enters or since and not life
      reserve(lock, list, key, comes_before and me or "", comes_before and tonumber(since) or math.huge)
    elseif found[i] == SHARED then
      -- Readers may have waited behind this call only.
      reserve(lock, list, key, "", math.huge, "")
    else
      end_reservation(list, key)
    end
  end
end
return all
