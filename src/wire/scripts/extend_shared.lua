-- extend_shared.lua: renews the full life of a reader's entry, or sets a missing one.
--
-- KEYS as in acquire.lua, of one lock
-- ARGV[1]  owner token
-- ARGV[2]  time to live of the entry, whole milliseconds, at least 1
-- ARGV[3]  the number of the last writer that the reader has found, or a larger counter that it was
--          shown: a whole number below 2^53
-- ARGV[4]  life of the counter, whole milliseconds; 0 for no end
-- ARGV[5]  version of the record that the client connected with
-- ARGV[6]  "set": sets a missing entry, too. Only if a majority has confirmed the reader with this
--          number
--          "keep": sets nothing
--          "raise": only lifts the counter to the number, and nothing where there is no counter: it
--          was lost since the acquire
-- ARGV[7]  as in extend.lua
--
-- Returns the node time if extended and the counter is the number; -3 if the record has another
-- version, and nothing was done; otherwise
-- { status, counter, 0, 0, node time, 0, "" }
--   status     1 extended
--              4 set again
--              6 extended, and the counter is above the number
--              2 with "raise": the counter is above the number, and this node must not be counted
--              0 the entry is gone or over. With "set": it was not set, because the counter is
--                above the number
--              3 the lock key is another owner's
--             -1 the counter or the readers have another type
--             -2 the counter is not a whole number below 2^53
--   the others as in extend.lua
--
-- An existing entry is extended with any counter. It exists if it is in the set, its end is in the
-- future, and the lock is shared: making the lock shared deletes the set, so no writer was granted
-- the lock here since the entry was set. Other readers lift counters. Only "set" makes an entry,
-- and never with a counter above the number: the nodes that confirmed the reader have lifted theirs
-- to it, so a writer may have come and gone here. The life of an entry and of the lock key is never
-- shortened.
local SHARED_LOCK = "quorlock:shared"

-- include clock.lua
local ms = math.floor(now / 1000)
local found = redis.call("MGET", KEYS[1], KEYS[2], KEYS[3])
local lock, counter, record = found[1], found[2], found[3]
-- include record_version.lua
if ARGV[7] then
  redis.pcall("ZREM", KEYS[5], ARGV[7] .. "r" .. ARGV[1])
end
-- include counter.lua
-- include reply.lua
local seen, wrong = read_counter(KEYS[2], counter)
if wrong then
  return reply(wrong, 0)
end

if lock and lock ~= SHARED_LOCK then
  return reply(3, seen)
end
local ttl, number = tonumber(ARGV[2]), tonumber(ARGV[3])
local score = lock and tonumber(redis.call("ZSCORE", KEYS[6], ARGV[1]) or nil)
local stands = score and score > ms
local raises = ARGV[6] == "raise"
if raises and not counter or not stands and (ARGV[6] ~= "set" or seen > number) then
  return reply(0, seen)
end
if raises then
  if seen > number then
    return reply(2, seen)
  end
  if seen < number then
    set_counter(redis.call, KEYS[2], ARGV[3], ARGV[4])
  end
  return now
end

local lasts = ttl
if lock then
  lasts = redis.call("PTTL", KEYS[1])
else
  -- Before anything is set, as in acquire_shared.lua.
  redis.call("DEL", KEYS[6])
  redis.call("PEXPIRE", KEYS[6], ttl)
  if not redis.call("SET", KEYS[1], SHARED_LOCK, "NX", "PX", ttl) then
    -- A key of another type.
    return reply(3, seen)
  end
end
redis.call("ZADD", KEYS[6], "GT", string.format("%.0f", ms + ttl), ARGV[1])
if lasts >= 0 and lasts < ttl then
  lasts = ttl
  redis.call("PEXPIRE", KEYS[1], ttl)
end
redis.call("PEXPIRE", KEYS[6], lasts < 0 and 7200000 or lasts)

local status = stands and 1 or 4
if seen < number then
  set_counter(redis.call, KEYS[2], ARGV[3], ARGV[4])
elseif ARGV[4] ~= "0" then
  redis.call("PEXPIRE", KEYS[2], ARGV[4])
end
if status == 1 and seen == number then
  return now
end
return reply(status == 1 and number < seen and 6 or status, seen)
