-- acquire_shared.lua: admits a reader if no writer holds the lock or waits before the reader.
--
-- KEYS, and ARGV but for these, as in acquire.lua
-- KEYS[1]  lock key
-- ARGV[1]  owner token
-- ARGV[2]  time to live of the reader's entry, whole milliseconds, at least 1
-- ARGV[3]  value for a counter that is missing or below the end of the quarantine, a whole number
--          below 2^53
--
-- Returns -3 if the record has another version, and nothing was done; otherwise
-- { status, counter, time left, entered, node time, 0, text }
--   status     7 granted, and the counter is that of the last writer
--              0 held by a writer
--              6 shared, but a writer waits before it
--              5 not looked at: the counter is missing or too low, and the value for it is too far
--                ahead of the node time
--             -1 the lock key, the counter or the readers have another type
--             -2 the counter is not a whole number below 2^53
--   counter    7 as it is now; otherwise as it was found, 0 if that is no whole number below 2^53
--   the others as in acquire.lua
--
-- Readers: a sorted set with the owner token of each, scored by the end of its entry, in
-- milliseconds of this node's clock. The lock key decides: an entry counts only while the lock key
-- shows a shared lock. So the script that makes the lock shared deletes the set first, and an old
-- set revives no reader. The lock key lives at least as long as each entry: here and in
-- extend_shared.lua its life only grows.

-- include clock.lua
local ms = math.floor(now / 1000)
local lock, counter, mark, record = unpack(redis.call("MGET", KEYS[1], KEYS[2], KEYS[4], KEYS[3]))
-- include record_version.lua
local ttl = tonumber(ARGV[2])
-- include counter.lua
-- include reply.lua
-- include record.lua
local is_ahead, let_others_in = tonumber(ARGV[3]) > now + ahead_max(record), nil
if mark or lock and lock ~= "quorlock:shared" then
  -- include handover.lua
  local keys = { KEYS[1], KEYS[2], KEYS[5], KEYS[4], KEYS[6] }
  local call_began, life, client, first, gets_messages =
    string.match(ARGV[6], "^(%d+) (%d*) (%x*) (%d+) %- (%d)$")
  local me, offer = client .. "r" .. ARGV[1], { is_ahead and "0" or ARGV[3], ARGV[4], first }
  if mark then
    redis.pcall("ZREM", KEYS[5], me)
  end
  -- Its entry exists: it was handed over, or the command runs twice.
  local score = lock == SHARED and tonumber(redis.pcall("ZSCORE", KEYS[6], ARGV[1]))
  local blocked = false
  if not (score and score > ms) and (not lock or lock == SHARED) then
    lock, blocked = hand_over(keys, lock, counter, record, mark, offer, me, tonumber(call_began))
  end
  if blocked or lock and lock ~= SHARED then
    local entered = 0
    if life ~= "" then
      entered = enter(keys, me, call_began, life, gets_messages, mark)
    end
    local left = redis.call("PTTL", KEYS[1])
    return { lock == SHARED and 6 or 0, whole(counter) or 0, left, entered, now, 0, label_in(lock) }
  end
  -- Readers after it, before the next writer.
  let_others_in = function(number)
    hand_over(keys, SHARED, number, record, mark, offer, "", math.huge)
  end
end

local seen, wrong = read_counter(KEYS[2], counter)
if wrong then
  return reply(wrong, 0)
end
local is_lost = not counter or seen < quarantine_end(record)
if is_lost then
  if is_ahead then
    return reply(5, 0)
  end
  seen = math.max(tonumber(ARGV[3]), quarantine_end(record))
end

local lasts = ttl
if lock then
  lasts = redis.call("PTTL", KEYS[1])
  -- Removes expired entries here. So a release needs no command for them that an access list may
  -- forbid.
  redis.call("ZREMRANGEBYSCORE", KEYS[6], "-inf", string.format("%.0f", ms))
else
  -- Before anything is set. PEXPIRE of a missing set only shows whether the access list permits it:
  -- no set stays without an expiry.
  redis.call("DEL", KEYS[6])
  redis.call("PEXPIRE", KEYS[6], ttl)
  -- Likewise. Only a reader that can leave is admitted: release_shared.lua reads the last entry.
  redis.call("ZADD", KEYS[6], "XX", 0, "")
  redis.call("ZRANGE", KEYS[6], -1, -1)
  if not redis.call("SET", KEYS[1], "quorlock:shared", "NX", "PX", ttl) then
    return reply(-1, 0)
  end
end
-- An existing entry gets its full life from this acquire.
redis.call("ZADD", KEYS[6], "GT", string.format("%.0f", ms + ttl), ARGV[1])
if lasts >= 0 and lasts < ttl then
  lasts = ttl
  redis.call("PEXPIRE", KEYS[1], ttl)
end
-- No entry lasts for two hours. A lock without an expiry was changed by another program.
redis.call("PEXPIRE", KEYS[6], lasts < 0 and 7200000 or lasts)

if is_lost then
  set_counter(redis.call, KEYS[2], string.format("%.0f", seen), ARGV[4])
elseif ARGV[4] ~= "0" then
  redis.call("PEXPIRE", KEYS[2], ARGV[4])
end
if mark and let_others_in then
  let_others_in(string.format("%.0f", seen))
end
return reply(7, seen)
