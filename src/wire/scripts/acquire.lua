-- acquire.lua: takes a lock that is free, and offers a fencing token.
--
-- KEYS[1]  lock key
-- KEYS[2]  fencing counter
-- ARGV[1]  owner token
-- ARGV[2]  time to live of the lock, whole milliseconds, at least 1
-- ARGV[3]  proposed fencing token, a whole number below 2^53
-- ARGV[4]  life of the counter, whole milliseconds; 0 for no end
--
-- Returns 1 if granted and the proposal is the counter now; otherwise { status, counter, time left }
--   status     2 granted, but the counter is not below the proposal
--              0 held by someone else
--             -1 the lock key or the counter is not a string
--             -2 the counter is not a whole number below 2^53
--   counter    as it was found
--   time left  of a key that is held: milliseconds, -1 if it has no expiry
--
-- A lock that is free takes two commands, and the way to the first return is short: this runs on every node for every
-- acquisition. Needs SET with GET: Redis 6.2.
--
-- A key that already holds our token is a grant (the command may have been executed twice), but a counter that
-- already is our proposal is never an acceptance: it may be another owner's.
local function set_counter(value)
  if ARGV[4] == "0" then
    return redis.pcall("SET", KEYS[2], value, "GET")
  end
  return redis.pcall("SET", KEYS[2], value, "PX", ARGV[4], "GET")
end

if not redis.call("SET", KEYS[1], ARGV[1], "NX", "PX", ARGV[2]) then
  local owner = redis.pcall("GET", KEYS[1])
  if type(owner) == "table" then
    return { -1, 0, 0 }
  end
  if owner ~= ARGV[1] then
    -- A counter that is none shows when somebody is granted the lock.
    local counter = redis.pcall("GET", KEYS[2])
    local seen = type(counter) == "string" and #counter <= 16 and tonumber(counter) or 0
    return { 0, seen, redis.call("PTTL", KEYS[1]) }
  end
end

-- Stored as it came: a number formatted by the script would lose digits. Compared as text while the lengths are
-- equal, which is as numbers; text of that length that is no number may be replaced.
local seen = set_counter(ARGV[3])
if not seen or type(seen) == "string" and #seen == #ARGV[3] and seen < ARGV[3] then
  return 1
end

-- From here on it is rare. Whatever else stood there is put back, and a grant without an order is none.
local number = type(seen) == "string" and #seen <= 16 and string.find(seen, "^%d+$") and tonumber(seen)
if number and number < 9007199254740992 then
  if number < tonumber(ARGV[3]) then
    return 1
  end
  set_counter(seen)
  return { 2, number, 0 }
end
redis.call("DEL", KEYS[1])
if type(seen) == "string" then
  set_counter(seen)
  return { -2, 0, 0 }
end
if string.find(seen.err, "WRONGTYPE", 1, true) then
  return { -1, 0, 0 }
end
return seen
