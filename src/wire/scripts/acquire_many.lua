-- acquire_many.lua: takes several locks if all of them are free, or none, and offers one fencing token for all.
--
-- KEYS[1]         lock keys, n of them
-- KEYS[n + 1]     fencing counters, in the same order, as all that follows
-- KEYS[2n + 1]    reservations
-- KEYS[3n + 1]    waiting lists
-- KEYS[4n + 1]    record
-- ARGV[1] to ARGV[6] as in acquire.lua; the client is that of the calls that wait for these locks together
--
-- Returns the node time if granted and the proposal is the counter of every lock now; -3 if the record has another edition, and
-- nothing was done; otherwise
-- { status, counter, time left, entered, node time, which }, and with status 0 the holder
--   status     as in acquire.lua, of the lock that is in the way
--   counter    the largest that was found, or 0. With status 2 the end of the server's quarantine, if that is larger
--   time left  of the lock that is in the way, or of its reservation: milliseconds, -1 if it has no end
--   entered    1 if the client is in the waiting list of the lock that is in the way
--   which      lock is in the way, from 1; 0 if none is by itself
--   holder     as in acquire.lua
--
-- A call waits in one list of a node at a time: that of the lock that was in its way. When it is told that this one is free
-- and finds another in its way, it passes the first on in the same step. So a free lock is not kept for a call that cannot
-- have them all.
--
-- Everything is read before anything is written, but for waiting lists.

local n = (#KEYS - 1) / 4

local clock = redis.call("TIME")
local now = clock[1] * 1000000 + clock[2]
local record = redis.call("MGET", KEYS[4 * n + 1])[1]
if not record or string.sub(record, 1, 15) ~= ARGV[5] then
  return -3
end
local found = redis.call("MGET", unpack(KEYS, 1, 3 * n))

-- The shortest way, as in acquire.lua: all are free, and nobody waits.
local is_short = #ARGV[3] == 16 and ARGV[4] ~= "0" and tonumber(ARGV[3]) <= now + 50000
for i = 1, n do
  local counter = found[n + i]
  is_short = is_short and not found[i] and not found[2 * n + i] and counter and #counter == 16 and counter < ARGV[3]
    and string.sub(record, 34, 49) <= counter
end
if is_short and redis.call("EXISTS", unpack(KEYS, 1, n)) == 0 then
  for i = 1, n do
    redis.call("SET", KEYS[i], ARGV[1], "PX", ARGV[2])
    redis.call("SET", KEYS[n + i], ARGV[3], "PX", ARGV[4])
  end
  return now
end

-- What is in the way of all of them: a key of another type, or a counter that is none.
-- include counter.lua
-- include record.lua
local largest, numbers, present = 0, {}, 0
local bad, bad_which = 0, 0
for i = 1, 2 * n do
  local value = found[i]
  if value then
    present = present + 1
  end
  if i > n then
    local number = whole(value)
    if value and not number then
      bad, bad_which = -2, i - n
    end
    numbers[i - n] = number or 0
    largest = math.max(largest, numbers[i - n])
  end
end
if tonumber(ARGV[3]) > now + ahead_max(record) and tonumber(ARGV[3]) > largest + 1 then
  return { 5, largest, 0, 0, now, 0 }
end
if redis.call("EXISTS", unpack(KEYS, 1, 2 * n)) ~= present then
  for i = 1, 2 * n do
    if not found[i] and redis.call("EXISTS", KEYS[i]) == 1 then
      bad, bad_which = -1, (i - 1) % n + 1
    end
  end
end

local is_contended = false
for i = 2 * n + 1, 3 * n do
  is_contended = is_contended or found[i]
end
local is_taken, which = false, 0
for i = n, 1, -1 do
  if found[i] and found[i] ~= ARGV[1] then
    is_taken, which = true, i
  end
end

if is_taken or is_contended then
  -- include reservation.lua
  local call_began, life, me, told = string.match(ARGV[6], "^(%d+) (%d*) (.*) (%d)$")
  local reserved_for, left = {}, {}

  -- The answer to a client that does not get the locks because of number `which`. It enters the waiting list of that one
  -- in the same step, and leaves the others. Those that are free and not reserved for another are passed on.
  local function refuse(status, left, holder)
    local entered = 0
    for i = 1, n do
      local lock, list, key = KEYS[i], KEYS[3 * n + i], KEYS[2 * n + i]
      if i == which and life ~= "" then
        entered = enter(list, key, me, call_began, life, told, reserved_for[i] or "")
      elseif found[2 * n + i] then
        if me ~= "" then
          redis.pcall("ZREM", list, me)
        end
        if reserved_for[i] == "" or reserved_for[i] == me then
          if found[i] == SHARED then
            -- Readers may have waited behind this call only.
            reserve(lock, list, key, "", math.huge, "")
          elseif found[i] then
            end_reservation(list, key)
          else
            reserve(lock, list, key, "", math.huge)
          end
        end
      end
    end
    return { status, largest, left, entered, now, which, holder }
  end

  for i = 1, n do
    local reservation = found[2 * n + i]
    if reservation then
      reserved_for[i], left[i] = read_reservation(reservation, KEYS[3 * n + i])
      if not is_taken and which == 0 and (reserved_for[i] == "" or reserved_for[i] ~= me) then
        if reserved_for[i] == "" then
          reserved_for[i], left[i] = reserve(KEYS[i], KEYS[3 * n + i], KEYS[2 * n + i], me, tonumber(call_began))
        end
        if left[i] > 0 then
          which = i
        end
      end
    end
  end

  if is_taken then
    local owner = found[which]
    if owner == SHARED then
      return refuse(6, redis.call("PTTL", KEYS[which]))
    end
    local named = #owner <= 96 and select(2, string.find(owner, "^%x+ ")) == 33 and not string.find(owner, "\r\n%p")
    return refuse(0, redis.call("PTTL", KEYS[which]), named and string.sub(owner, 34) or "")
  end
  if which ~= 0 then
    return refuse(3, left[which])
  end
  if bad == 0 and me ~= "" then
    for i = 1, n do
      if reserved_for[i] then
        redis.pcall("ZREM", KEYS[3 * n + i], me)
        if reserved_for[i] == "" or reserved_for[i] == me then
          end_reservation(KEYS[3 * n + i], KEYS[2 * n + i])
        end
      end
    end
  end
end

if bad ~= 0 then
  return { bad, 0, 0, 0, now, bad_which }
end

for i = 1, n do
  -- A command that is executed for the second time gives its keys no longer life.
  if not found[i] then
    redis.call("SET", KEYS[i], ARGV[1], "PX", ARGV[2])
  end
end
largest = math.max(largest, quarantine_end(record))
if tonumber(ARGV[3]) > largest then
  for i = 1, n do
    set_counter(redis.call, KEYS[n + i], ARGV[3], ARGV[4])
  end
  return now
end
-- The raise that follows needs a counter of each lock. See acquire.lua.
for i = 1, n do
  if numbers[i] < tonumber(ARGV[3]) then
    set_counter(redis.call, KEYS[n + i], ARGV[3], ARGV[4])
  end
end
return { 2, largest, 0, 0, now, 0 }
