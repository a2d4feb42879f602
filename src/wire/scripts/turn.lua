-- turn.lua: who of those who wait may take a free lock. Included in acquire.lua and release.lua, behind the way on
-- which nobody waits.
--
-- Waiting list: a sorted set, one member for each client that waits, by the time its call began. All nodes are told
-- the same time, so all of them have the same order. Half a microsecond on top says that the client cannot be told over
-- the connection that entered it, and asks again by itself.
-- Turn: a string that exists for as long as anybody waits. "0 " is nobody's turn; otherwise until when, in milliseconds
-- since 1970, whose, and when his call began. A client that was told is in the turn and no longer in the list; one that
-- could not be told stays in the list until he comes, and is struck from it if he does not come in his turn.
--
-- Everything here is an aid and no part of the lock: where an access list forbids one of these commands, or a key holds
-- something else, clients wait without it.

-- How long an offer stands: milliseconds. A client that was stopped holds the others up for so long, and one that cannot
-- be told asks more often than that (`logic::wait` knows it too).
local TURN = 1000
-- Clients that are gone are struck from the list when their turn comes; so many in one run. Each takes a server about
-- a microsecond.
local STRUCK = 1000

local function millis()
  local clock = redis.call("TIME")
  return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

-- Whose turn it is, for how many milliseconds, and when his call began; "" if nobody's.
local function read_turn(turn, list)
  local till, whose, began = string.match(turn, "^(%d+) (%S+) ?(%d*)$")
  if not whose then
    return "", 0, math.huge
  end
  local left = tonumber(till) - millis()
  -- More than it ever was: the clock was set back.
  if left <= 0 or left > TURN then
    redis.pcall("ZREM", list, whose)
    return "", 0, math.huge
  end
  return whose, left, tonumber(began) or math.huge
end

-- Never without an end: what has none yet is not made here.
local function set_turn(turn, value)
  redis.pcall("SET", turn, value, "XX", "KEEPTTL")
end

-- It is nobody's turn any more, or nobody waits any more.
local function end_turn(list, turn)
  if redis.pcall("EXISTS", list) == 1 then
    set_turn(turn, "0 ")
  else
    redis.pcall("DEL", turn)
  end
end

-- Offers the lock to the first in the list who is there, unless `me`, whose call began at `since`, comes before. Returns
-- who has the turn now, "" for nobody, and for how many milliseconds the lock is not `me`'s to take.
local function offer(lock, list, turn, me, since)
  local gone, size = {}, 1
  local whose, began, left, sorted = "", 0, 0, false
  repeat
    local some = redis.pcall("ZRANGE", list, #gone, #gone + size - 1, "WITHSCORES")
    sorted = #some < 2 * size
    for i = 1, #some, 2 do
      whose, began = some[i], tonumber(some[i + 1])
      if whose == me or since < began or since == began and me < whose then
        whose, sorted = "", true
        break
      end
      local told = redis.pcall("PUBLISH", "quorlock:wake:" .. whose, lock)
      local is_told = type(told) == "number" and told > 0
      if is_told or told == 0 and began % 1 == 0 then
        gone[#gone + 1] = whose
      end
      if is_told or told ~= 0 or began % 1 ~= 0 then
        -- Told, or not to be told: then he comes by himself.
        left, sorted = TURN, true
        break
      end
      whose = ""
    end
    size = math.min(size * 8, STRUCK - #gone)
  until sorted or size == 0
  if #gone > 0 then
    redis.pcall("ZREM", list, unpack(gone))
  end
  if whose ~= "" then
    set_turn(turn, string.format("%.0f %s %.0f", millis() + TURN, whose, began))
  else
    end_turn(list, turn)
    -- Whoever comes next goes on with it.
    left = sorted and 0 or 1
  end
  return whose, left
end

-- Enters `me` in the list for `life` milliseconds; `told` is "1" if it listens. Returns 1 if that was done.
local function enter(list, turn, me, since, life, told, whose)
  local done = redis.pcall("ZADD", list, told == "1" and since or since .. ".5", me)
  if type(done) ~= "number" then
    return 0
  end
  -- Somebody else may have entered for longer. The turn is kept with the list: without it nobody would be told.
  local kept = redis.call("PTTL", list)
  if kept < tonumber(life) then
    redis.call("PEXPIRE", list, life)
    kept = life
  end
  if whose == "" or whose == me then
    redis.call("SET", turn, "0 ", "PX", kept)
  else
    redis.call("PEXPIRE", turn, kept)
  end
  return 1
end

