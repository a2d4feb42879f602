-- release_shared.lua: ends a reader's entry, and no other. Without further entries the lock is free
-- and is handed over.
--
-- KEYS[1]  lock key, and the other KEYS and ARGV as in release.lua, of a call that reads; RAISED is
--          always 0, and KEEP "-"
--
-- Returns 1 if the entry was ended, 0 if it was already gone.
--
-- A crashed reader keeps the lock only until its own entry ends: the life of the lock key is cut to
-- the longest remaining entry.
local found = redis.call("MGET", KEYS[1], KEYS[4], KEYS[2], KEYS[3])
local lock, mark = found[1], found[2]
local ended, is_free = 0, not lock
if lock == "quorlock:shared" then
  ended = redis.call("ZREM", KEYS[6], ARGV[1])
  local clock = redis.call("TIME")
  local last = redis.call("ZRANGE", KEYS[6], -1, -1, "WITHSCORES")
  local left = last[2] and tonumber(last[2]) - clock[1] * 1000 - math.floor(clock[2] / 1000) or 0
  if left <= 0 then
    redis.call("DEL", KEYS[1], KEYS[6])
    is_free = true
  elseif redis.call("PTTL", KEYS[1]) > left then
    redis.call("PEXPIRE", KEYS[1], left)
    redis.call("PEXPIRE", KEYS[6], left)
  end
end
if not mark and not ARGV[5] then
  return ended
end

-- include counter.lua
-- include handover.lua
local keys = { KEYS[1], KEYS[2], KEYS[5], KEYS[4], KEYS[6] }
local next, life, first = string.match(ARGV[2], "^(%d+) (%d+) (%d+)")
if ARGV[3] then
  leave(keys, ARGV[3] .. "r" .. ARGV[1])
end
local me, since = "", math.huge
if ARGV[5] then
  local keep_for, yields, member, gets_messages = string.match(ARGV[5], "^1 (%d+) (%d) (.*) (%d)$")
  enter(keys, ARGV[3] .. member, ARGV[4], keep_for, gets_messages, mark)
  if yields == "1" then
    me, since = ARGV[3] .. member, tonumber(ARGV[4])
  end
end
if is_free or lock == SHARED then
  hand_over(keys, not is_free and lock, found[3], found[4], mark,
    { ended == 1 and next or "0", life, first }, me, since)
end
return ended
