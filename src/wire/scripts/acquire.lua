-- acquire.lua: takes a lock that is free, and offers a fencing token.
--
-- KEYS[1]  lock key
-- KEYS[2]  fencing counter
-- KEYS[3]  waiting list
-- KEYS[4]  turn
-- KEYS[5]  canary
-- ARGV[1]  owner token
-- ARGV[2]  time to live of the lock, whole milliseconds, at least 1
-- ARGV[3]  proposed fencing token, a whole number below 2^53
-- ARGV[4]  life of the counter, whole milliseconds; 0 for no end
-- ARGV[5]  for how long a node that has forgotten is silent, whole milliseconds; 0 for not at all
-- ARGV[6]  "fair": leaves a free lock to those who have waited for longer
--          "unfair": only to those who have waited for longer and for more than a second
-- ARGV[7]  when the call began, microseconds since 1970
-- ARGV[8]  client; empty for one that does not wait
-- ARGV[9]  life of the waiting list, whole milliseconds, if the client enters it when it is refused; empty if not
-- ARGV[10] "1" if the client is told of releases over this connection, "0" if it only asks again
--
-- Returns the node time if granted and the proposal is the counter now; otherwise
-- { status, counter, time left, entered, node time }, and with status 0 the holder
--   status     2 granted, but the counter is not below the proposal
--              0 held by someone else
--              3 free, but it is another client's turn
--              4 free, but this node has forgotten what it knew, and is silent
--              5 not looked at: the proposal is far ahead of the node time and of the counter
--             -1 the lock key or the counter is not a string
--             -2 the counter is not a whole number below 2^53
--   counter    as it was found; 0 if that is no whole number below 2^53; where there was none and a grant comes behind
--              what the node has forgotten: when its silence ended
--   time left  of a key that is held, of a turn, or of the silence: milliseconds, -1 if it has no end
--   entered    1 if the client is in the waiting list now
--   node time  microseconds since 1970
--   holder     what the lock's value says behind its random part, which nobody else is to know; "" if that is nothing
--
-- A lock that is free, and that nobody waits for, takes four commands, and the way to the first return is short: this
-- runs on every node for every acquisition. Needs SET with GET: Redis 6.2. The lock is set before it is known whose turn
-- it is, and deleted again if that is somebody else: nobody sees that.
--
-- A key that already holds our token is a grant (the command may have been executed twice), but a counter that
-- already is our proposal is never an acceptance: it may be another owner's.

-- How far a proposal may be ahead of this node's clock: microseconds. The clock of a client that is further ahead would
-- pull the counter along, and everybody else would need a second round for as long as the lock is in use.
local AHEAD = 3600000000
-- For how long an unfair call may get in before those who wait: microseconds.
local PATIENCE = 1000000

-- The fencing counter in what was found: a whole number below 2^53; nil for anything else.
local function whole(found)
  local number = type(found) == "string" and #found <= 16 and string.find(found, "^%d+$") and tonumber(found)
  return number and number < 9007199254740992 and number or nil
end

local clock = redis.call("TIME")
local now = clock[1] * 1000000 + clock[2]
if tonumber(ARGV[3]) > now + AHEAD then
  local counter = whole(redis.pcall("GET", KEYS[2])) or 0
  if tonumber(ARGV[3]) > counter + 1 then
    return { 5, counter, 0, 0, now }
  end
end

local taken = redis.call("SET", KEYS[1], ARGV[1], "NX", "PX", ARGV[2])
local turn = taken and redis.pcall("GET", KEYS[4])

if turn or not taken then
  -- include turn.lua
  local owner, counter, whose, left, began = ARGV[1], false, "", 0, 0
  if not taken then
    owner, counter, turn = unpack(redis.call("MGET", KEYS[1], KEYS[2], KEYS[4]))
    if not owner then
      return { -1, 0, 0, 0, now }
    end
  end
  -- Something else may stand there: then nobody waits.
  turn = type(turn) == "string" and turn

  -- The answer to a caller that does not get the lock. It enters the list here, in the same step: what is released
  -- after this is announced to it.
  local function refuse(status, counter, left, holder)
    local entered = 0
    if ARGV[9] ~= "" then
      entered = enter(KEYS[3], KEYS[4], ARGV[8], ARGV[7], ARGV[9], ARGV[10], whose)
    end
    return { status, whole(counter) or 0, left, entered, now, holder }
  end

  if turn then
    whose, left, began = read_turn(turn, KEYS[3])
    if taken and (whose == "" or whose ~= ARGV[8]) then
      local since = tonumber(ARGV[7])
      if ARGV[6] == "unfair" then
        since = math.min(since, now - PATIENCE)
      end
      if whose == "" then
        whose, left = offer(KEYS[1], KEYS[3], KEYS[4], ARGV[8], since)
      elseif ARGV[6] == "unfair" and began >= since then
        left = 0
      end
      if left > 0 then
        redis.call("DEL", KEYS[1])
        return refuse(3, redis.pcall("GET", KEYS[2]), left)
      end
    end
  end

  if owner ~= ARGV[1] then
    -- A counter that is none shows when somebody is granted the lock.
    local named = #owner <= 96 and select(2, string.find(owner, "^%x+ ")) == 33
    local holder = named and string.sub(owner, 34) or ""
    return refuse(0, counter, redis.call("PTTL", KEYS[1]), holder)
  end

  if turn and ARGV[8] ~= "" then
    redis.pcall("ZREM", KEYS[3], ARGV[8])
    if whose == "" or whose == ARGV[8] then
      end_turn(KEYS[3], KEYS[4])
    end
  end
end

-- Stored as it came: a number formatted by the script would lose digits. Compared as text while the lengths are
-- equal, which is as numbers; text of that length that is no number may be replaced.
local function set_counter(value)
  if ARGV[4] == "0" then
    return redis.pcall("SET", KEYS[2], value, "GET")
  end
  return redis.pcall("SET", KEYS[2], value, "PX", ARGV[4], "GET")
end

local seen = set_counter(ARGV[3])
if type(seen) == "string" and #seen == #ARGV[3] and seen < ARGV[3] then
  return now
end

if not seen then
  -- include canary.lua
  local left, silent_until = 0, 0
  if ARGV[5] ~= "0" then
    left, silent_until = silent_for(KEYS[5], now, tonumber(ARGV[5]))
  end
  if left == 0 then
    if tonumber(ARGV[3]) > silent_until then
      return now
    end
    -- Whatever it has forgotten was proposed before it fell silent, by clocks that show about the same time.
    set_counter(string.format("%.0f", silent_until))
    return { 2, silent_until, 0, 0, now }
  end
  -- Without the counter: as long as there is none, the next one looks at the canary as well.
  redis.call("DEL", KEYS[1], KEYS[2])
  return { 4, 0, left, 0, now }
end

-- From here on it is rare. Whatever else stood there is put back, and a grant without an order is none.
local number = whole(seen)
if number then
  if number < tonumber(ARGV[3]) then
    return now
  end
  set_counter(seen)
  return { 2, number, 0, 0, now }
end
redis.call("DEL", KEYS[1])
if type(seen) == "string" then
  set_counter(seen)
  return { -2, 0, 0, 0, now }
end
if string.find(seen.err, "WRONGTYPE", 1, true) then
  return { -1, 0, 0, 0, now }
end
return seen
