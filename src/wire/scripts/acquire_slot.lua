-- acquire_slot.lua: takes the first free of the slots of a semaphore, and offers a fencing token for it.
--
-- KEYS[1]       slot keys, n of them
-- KEYS[n + 1]   fencing counters, in the same order
-- KEYS[2n + 1]  reservation
-- KEYS[2n + 2]  waiting list
-- KEYS[2n + 3]  record
-- ARGV[1] to ARGV[5] as in acquire.lua
-- ARGV[6]       the slot to begin with, from 1
-- ARGV[7]       "1" if it is to be that slot or none
-- ARGV[8]       ARGV[6] of acquire.lua; the client is that of the calls that wait for this semaphore
--
-- Returns -3 if the record has another edition, and nothing was done; otherwise
-- { status, counter, time left, entered, node time, slot, slots, free }
--   status     as in acquire.lua, 1 as well. 0: no slot is free, or not the one that was asked for
--   counter    of the slot, as it was found. With status 2 the end of the server's quarantine, if that is larger
--   time left  until the first slot can be free, or of the reservation: milliseconds, -1 if it has no end
--   entered    1 if the client is in the waiting list
--   slot       that was granted, or that is unusable; 0 for none
--   slots      n, of which
--   free       were free or the caller's before: hex digits, the first four slots first, each digit's lowest bit
--              first
--
-- All nodes begin at the same slot, so they grant the same one where they agree on what is free. Each slot obeys the rules of
-- acquire.lua: it has a counter of its own.

local n = (#KEYS - 3) / 2
local list, key = KEYS[2 * n + 2], KEYS[2 * n + 1]
local clock = redis.call("TIME")
local now = clock[1] * 1000000 + clock[2]
local reservation, record = unpack(redis.call("MGET", key, KEYS[2 * n + 3]))
if not record or string.sub(record, 1, 15) ~= ARGV[5] then
  return -3
end
local found = redis.call("MGET", unpack(KEYS, 1, n))

-- A key of another type is not free.
local present, misused = 0, 0
for i = 1, n do
  present = present + (found[i] and 1 or 0)
end
if redis.call("EXISTS", unpack(KEYS, 1, n)) ~= present then
  for i = 1, n do
    if not found[i] and redis.call("EXISTS", KEYS[i]) == 1 then
      found[i], misused = "", i
    end
  end
end

local slot, free = 0, {}
for i = 1, n do
  if found[i] == ARGV[1] then
    -- The command is executed for the second time, and gives the key no longer life.
    slot = i
  end
end
local first = tonumber(ARGV[6])
for i = first, ARGV[7] == "1" and first or first + n - 1 do
  local at = (i - 1) % n + 1
  if slot == 0 and not found[at] then
    slot = at
  end
end
for i = 1, n, 4 do
  local digit = 0
  for bit = 0, 3 do
    if i + bit <= n and (not found[i + bit] or found[i + bit] == ARGV[1]) then
      digit = digit + 2 ^ bit
    end
  end
  free[#free + 1] = string.format("%x", digit)
end
free = table.concat(free)

-- The shortest way, as in acquire.lua.
local counter = slot ~= 0 and redis.pcall("GET", KEYS[n + slot])
if not reservation and type(counter) == "string" and #counter == 16 and #ARGV[3] == 16 and counter < ARGV[3]
  and string.sub(record, 34, 49) <= counter and ARGV[4] ~= "0" and tonumber(ARGV[3]) <= now + 50000 then
  if found[slot] ~= ARGV[1] then
    redis.call("SET", KEYS[slot], ARGV[1], "PX", ARGV[2])
  end
  redis.call("SET", KEYS[n + slot], ARGV[3], "PX", ARGV[4])
  return { 1, 0, 0, 0, now, slot, n, free }
end

-- include counter.lua
-- include record.lua
local whole_counter = 0
if slot ~= 0 then
  whole_counter = whole(counter) or 0
  if tonumber(ARGV[3]) > now + ahead_max(record) and tonumber(ARGV[3]) > whole_counter + 1 then
    return { 5, whole_counter, 0, 0, now, slot, n, free }
  end
end

if slot == 0 or reservation then
  -- include reservation.lua
  local call_began, life, me, told = string.match(ARGV[8], "^(%d+) (%d*) (.*) (%d)$")
  local reserved_for, left = "", 0
  if reservation then
    reserved_for, left = read_reservation(reservation, list)
    if slot ~= 0 and found[slot] ~= ARGV[1] and (reserved_for == "" or reserved_for ~= me) then
      local since = tonumber(call_began)
      -- One free slot is left to each client that comes before. If there are more, nobody is in the way.
      local more = reserved_for == "" and 0 or -1
      for i = 1, n do
        more = more + (found[i] and 0 or 1)
      end
      local before = more > 0 and redis.pcall("ZRANGE", list, 0, more, "WITHSCORES") or {}
      for i = 1, #before, 2 do
        local member, entered = before[i], tonumber(before[i + 1])
        if member ~= reserved_for and (entered < since or entered == since and member < me) then
          more = more - 1
        end
      end
      if more > 0 then
        left = 0
      elseif reserved_for == "" then
        reserved_for, left = reserve(KEYS[1], list, key, me, since)
      end
      if left > 0 then
        local entered = 0
        if life ~= "" then
          entered = enter(list, key, me, call_began, life, told, reserved_for)
        end
        return { 3, whole_counter, left, entered, now, 0, n, free }
      end
    end
  end
  if slot == 0 then
    local entered, soonest = 0, -1
    for i = 1, n do
      local ends = redis.call("PTTL", KEYS[i])
      if ends >= 0 and (soonest < 0 or ends < soonest) then
        soonest = ends
      end
    end
    if soonest < 0 and misused ~= 0 then
      return { -1, 0, 0, 0, now, misused, n, free }
    end
    if life ~= "" then
      entered = enter(list, key, me, call_began, life, told, reserved_for)
    end
    return { 0, 0, soonest, entered, now, 0, n, free }
  end
  if reservation and me ~= "" then
    redis.pcall("ZREM", list, me)
  end
  if reservation and (reserved_for == "" or reserved_for == me) then
    -- Its turn is over. While others are free, the next in the list is told.
    local is_free = false
    for i = 1, n do
      is_free = is_free or i ~= slot and not found[i]
    end
    if is_free then
      reserve(KEYS[1], list, key, "", math.huge)
    else
      end_reservation(list, key)
    end
  end
end

if type(counter) == "table" then
  if counter.err and string.find(counter.err, "WRONGTYPE", 1, true) then
    return { -1, 0, 0, 0, now, slot, n, free }
  end
  return counter
elseif counter and whole_counter == 0 and counter ~= "0" then
  return { -2, 0, 0, 0, now, slot, n, free }
end

if found[slot] ~= ARGV[1] then
  redis.call("SET", KEYS[slot], ARGV[1], "PX", ARGV[2])
end
local seen = math.max(whole_counter, quarantine_end(record))
if tonumber(ARGV[3]) > seen then
  set_counter(redis.call, KEYS[n + slot], ARGV[3], ARGV[4])
  return { 1, 0, 0, 0, now, slot, n, free }
end
-- See acquire.lua.
if whole_counter < tonumber(ARGV[3]) then
  set_counter(redis.call, KEYS[n + slot], ARGV[3], ARGV[4])
end
return { 2, seen, 0, 0, now, slot, n, free }
