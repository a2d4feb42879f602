-- inspect.lua: the state of a lock on a node. Changes nothing.
--
-- KEYS[1]  lock key
-- KEYS[2]  fencing counter
-- KEYS[3]  waiting list
-- KEYS[4]  readers
-- ARGV[1]  how many readers are named at most
-- ARGV[2]  the longest value that is returned, bytes
--
-- Returns { what, time left, counter, waiting, waiting since, node time, value, number of readers,
--           owner token of a reader, its time left, … }
--   what           0 no lock key, 1 a value, 2 a value that no lock has, 3 readers, -1 a key of
--                    another type
--   time left      of the lock key, or of the reader's entry: milliseconds; -1 if it has no end
--   counter        -1 if there is none, -2 if it is no whole number below 2^53
--   waiting        calls in the waiting list
--   waiting since  when the call of the first one began, microseconds since 1970; 0 if none waits
--   node time      microseconds since 1970
--   value          of the lock key; "" unless the first number is 1
--
-- Beside the lock key, a key of another type counts as empty.
-- include counter.lua
-- include clock.lua
local ms = math.floor(now / 1000)

local function number(found)
  return type(found) == "number" and found or 0
end

local lock, found = redis.pcall("GET", KEYS[1]), redis.pcall("GET", KEYS[2])
local what, left, value, readers, count = 0, 0, "", {}, 0
if lock then
  left = redis.call("PTTL", KEYS[1])
  if type(lock) ~= "string" then
    what = -1
  elseif lock == "quorlock:shared" then
    what = 3
    local from = "(" .. string.format("%.0f", ms)
    count = number(redis.pcall("ZCOUNT", KEYS[4], from, "+inf"))
    readers = redis.pcall("ZRANGEBYSCORE", KEYS[4], from, "+inf", "WITHSCORES", "LIMIT", 0, ARGV[1])
  elseif #lock > tonumber(ARGV[2]) or string.find(lock, "\r\n%p") then
    what = 2
  else
    what, value = 1, lock
  end
end

local counter = -1
if found then
  counter = whole(found) or -2
end

local first = redis.pcall("ZRANGE", KEYS[3], 0, 0, "WITHSCORES")
local since = math.floor(tonumber(first[2] or 0) or 0)

local waiting = number(redis.pcall("ZCARD", KEYS[3]))
local reply = { what, left, counter, waiting, since, now, value, count }
for i = 1, #readers, 2 do
  reply[#reply + 1] = readers[i]
  reply[#reply + 1] = tonumber(readers[i + 1]) - ms
end
return reply
