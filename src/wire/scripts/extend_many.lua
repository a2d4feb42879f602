-- extend_many.lua: extends several locks of one owner, or heals them: sets those again that are missing.
--
-- KEYS[1]       lock keys, n of them
-- KEYS[n + 1]   fencing counters, in the same order
-- KEYS[2n + 1]  record
-- ARGV[1] to ARGV[6] as in extend.lua
--
-- Returns the node time if all were extended and each counter is the token; -3 if the record has another edition, and nothing
-- was done; otherwise
-- { status, counter, node time, time left }
--   status     1 all extended
--              4 all are there, and some were set again
--              3 one is another owner's
--              0 one is gone, and none is another owner's
--              2 the counter of one is above the token, and none is gone
--             -1 a counter is not a string
--             -2 a counter is not a whole number below 2^53
--   counter    the largest that was found
--   node time  microseconds since 1970
--   time left  0
--
-- Each lock obeys the rules of extend.lua by itself. So one that is ours is extended whatever became of the others, unless
-- its counter is above the token. Missing ones are set again only if that makes them complete.
-- include counter.lua
local n = (#KEYS - 1) / 2
local clock = redis.call("TIME")
local now = clock[1] * 1000000 + clock[2]
local found = redis.call("MGET", unpack(KEYS))
local record = found[2 * n + 1]
if not record or string.sub(record, 1, 15) ~= ARGV[5] then
  return -3
end
local token, seen = tonumber(ARGV[3]), 0
local gone, taken = false, false
local numbers = {}
for i = 1, n do
  local owner, counter = found[i], found[n + i]
  local number, wrong = read_counter(KEYS[n + i], counter)
  if wrong then
    return { wrong, 0, now, 0 }
  end
  numbers[i] = number
  seen = math.max(seen, number)
  gone = gone or not owner
  taken = taken or owner and owner ~= ARGV[1]
end

local heals = ARGV[6] == "heal" and gone and not taken and seen <= token
if heals then
  for i = 1, n do
    -- A key of another type is not gone.
    taken = taken or not found[i] and redis.call("EXISTS", KEYS[i]) == 1
  end
  heals = not taken
end
for i = 1, n do
  if found[i] == ARGV[1] and numbers[i] <= token then
    local left = redis.call("PTTL", KEYS[i])
    if left >= 0 and left < tonumber(ARGV[2]) then
      redis.call("PEXPIRE", KEYS[i], ARGV[2])
    end
  elseif not found[i] and heals then
    redis.call("SET", KEYS[i], ARGV[1], "PX", ARGV[2])
  end
end
if taken then
  return { 3, seen, now, 0 }
end
if gone and not heals then
  return { 0, seen, now, 0 }
end
if seen > token then
  return { 2, seen, now, 0 }
end

for i = 1, n do
  if numbers[i] < token then
    set_counter(redis.call, KEYS[n + i], ARGV[3], ARGV[4])
  elseif ARGV[6] and ARGV[4] ~= "0" then
    redis.call("PEXPIRE", KEYS[n + i], ARGV[4])
  end
end
if heals then
  return { 4, seen, now, 0 }
end
return now
