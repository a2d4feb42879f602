-- extend.lua: renews the full time to live of one or several locks of their owner, and sets missing
-- ones.
--
-- KEYS as in acquire.lua; of a semaphore those of one slot
-- ARGV[1]  owner token
-- ARGV[2]  time to live of the locks, whole milliseconds, at least 1
-- ARGV[3]  number of the owner: its fencing token, or a larger counter that it was shown: a whole
--          number below 2^53
-- ARGV[4]  life of the counters, whole milliseconds; 0 for no end
-- ARGV[5]  version of the record that the client connected with
-- ARGV[6]  "set": sets missing lock keys, too. Only if a majority has confirmed the owner with this
--          number
--          "keep": sets nothing
--          "raise": raises the counters to the token, and does nothing else
-- ARGV[7]  client id, if the owner may be in a waiting list: it leaves it
--
-- Returns the node time if all were extended and each counter is the token; -3 if the record has
-- another version, and nothing was done; otherwise
-- { status, counter, 0, 0, node time, 0, "" }
--   status     1 all extended
--              4 all are there, and some were set
--              3 one is another owner's
--              0 one is gone, and none is another owner's
--              2 a counter is above the token, and none is gone: another owner has been granted
--                that lock since or, with "raise": a counter is not below it, none is raised, and
--                this node must not be counted
--             -1 a counter is not a string
--             -2 a counter is not a whole number below 2^53
--   counter    the largest that was found
--   node time  microseconds since 1970
--
-- Only "set" creates a key, never with a counter ahead, and only if that completes all locks: an
-- expired lock may have had another owner since. A lock of ours is extended regardless of the
-- others, unless its counter is above the token. The life of a key is never shortened: the owner
-- relies on earlier extensions.
local n = (#KEYS - 1) / 5
-- include clock.lua
local found = redis.call("MGET", unpack(KEYS, 1, 2 * n + 1))
local record = found[2 * n + 1]
-- include record_version.lua

-- The shortest way, before any function, as in acquire.lua. Extensions are most of a server's work
-- for long holds.
local raises = ARGV[6] == "raise"
local is_short = not raises
for i = 1, n do
  is_short = is_short and found[i] == ARGV[1] and found[n + i] == ARGV[3]
end
if is_short then
  for i = 1, n do
    local left = redis.call("PTTL", KEYS[i])
    if left >= 0 and left < tonumber(ARGV[2]) then
      redis.call("PEXPIRE", KEYS[i], ARGV[2])
    end
    if ARGV[4] ~= "0" then
      redis.call("PEXPIRE", KEYS[n + i], ARGV[4])
    end
  end
  return now
end

for i = 1, ARGV[7] and n or 0 do
  redis.pcall("ZREM", KEYS[3 * n + 1 + i], ARGV[7] .. "w" .. ARGV[1])
end

-- include counter.lua
-- include reply.lua
local token, seen = tonumber(ARGV[3]), 0
local gone, taken, is_lost = false, false, false
local numbers = {}
for i = 1, n do
  local owner, counter = found[i], found[n + i]
  local number, wrong = read_counter(KEYS[n + i], counter)
  if wrong then
    return reply(wrong, 0)
  end
  numbers[i] = number
  seen = math.max(seen, number)
  gone = gone or not owner
  taken = taken or owner and owner ~= ARGV[1]
  is_lost = is_lost or not counter
end

-- Only while our keys are set: a raise after our release would raise a counter during another
-- owner's hold, and tokens would lose the order of holds. And only with a counter: a missing one
-- was lost since the acquire.
if raises then
  if gone or taken or is_lost then
    return reply(0, seen)
  end
  if seen >= token then
    return reply(2, seen)
  end
  for i = 1, n do
    set_counter(redis.call, KEYS[n + i], ARGV[3], ARGV[4])
  end
  return now
end

local sets = ARGV[6] == "set" and gone and not taken and seen <= token
if sets then
  for i = 1, n do
    -- A key of another type is not gone.
    taken = taken or not found[i] and redis.call("EXISTS", KEYS[i]) == 1
  end
  sets = not taken
end
for i = 1, n do
  if found[i] == ARGV[1] and numbers[i] <= token then
    local left = redis.call("PTTL", KEYS[i])
    if left >= 0 and left < tonumber(ARGV[2]) then
      redis.call("PEXPIRE", KEYS[i], ARGV[2])
    end
  elseif not found[i] and sets then
    redis.call("SET", KEYS[i], ARGV[1], "PX", ARGV[2])
  end
end
if taken then
  return reply(3, seen)
end
if gone and not sets then
  return reply(0, seen)
end
if seen > token then
  return reply(2, seen)
end

for i = 1, n do
  if numbers[i] < token then
    set_counter(redis.call, KEYS[n + i], ARGV[3], ARGV[4])
  elseif ARGV[4] ~= "0" then
    redis.call("PEXPIRE", KEYS[n + i], ARGV[4])
  end
end
if sets then
  return reply(4, seen)
end
return now
