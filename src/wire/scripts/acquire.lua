-- acquire.lua: takes a lock that is free, and offers a fencing token.
--
-- KEYS[1]  lock key
-- KEYS[2]  fencing counter
-- ARGV[1]  owner token
-- ARGV[2]  time to live of the lock, whole milliseconds, at least 1
-- ARGV[3]  proposed fencing token, a whole number below 2^53
-- ARGV[4]  life of the counter, whole milliseconds; 0 for no end
--
-- Returns { status, counter, time left }
--   status     1 granted and the proposal is the counter now
--              2 granted, but the counter is not below the proposal
--              0 held by someone else
--             -1 the lock key or the counter is not a string
--             -2 the counter is not a whole number below 2^53
--   counter    as it was found
--   time left  of a key that is held: milliseconds, -1 if it has no expiry
--
-- Every call of a command from a script costs the server about as much as the rest of the script, so there are three.
--
-- All reads and checks come first and both writes last: an error on the way leaves nothing behind.
--
-- A key that already holds our token is a grant (the command may have been executed twice), but a counter that
-- already is our proposal is never an acceptance: it may be another owner's.
local found = redis.call("MGET", KEYS[1], KEYS[2])
local owner, counter = found[1], found[2]
local seen = 0
if counter then
  if #counter > 16 or not string.find(counter, "^%d+$") then
    return { -2, 0, 0 }
  end
  seen = tonumber(counter)
  if seen >= 9007199254740992 then
    return { -2, 0, 0 }
  end
elseif redis.call("EXISTS", KEYS[2]) == 1 then
  return { -1, 0, 0 }
end

if owner ~= ARGV[1] then
  if owner then
    return { 0, seen, redis.call("PTTL", KEYS[1]) }
  end
  -- MGET shows a key of another type as missing; NX does not.
  if not redis.call("SET", KEYS[1], ARGV[1], "NX", "PX", ARGV[2]) then
    return { -1, seen, 0 }
  end
end
-- The proposal is stored as it came: a number formatted by the script would lose digits.
if tonumber(ARGV[3]) > seen then
  if ARGV[4] == "0" then
    redis.call("SET", KEYS[2], ARGV[3])
  else
    redis.call("SET", KEYS[2], ARGV[3], "PX", ARGV[4])
  end
  return { 1, seen, 0 }
end
if ARGV[4] ~= "0" then
  redis.call("PEXPIRE", KEYS[2], ARGV[4])
end
return { 2, seen, 0 }
