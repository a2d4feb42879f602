-- turn.lua: who of those who wait may take a free lock. Included in acquire.lua and release.lua, behind the way on
-- which nobody waits.
--
-- Waiting list: a sorted set, one member for each client that waits, by the time its call began. All nodes are told
-- the same time, so all of them have the same order.
-- Turn: a string that exists for as long as anybody waits. "0 " is nobody's turn; otherwise until when, in milliseconds
-- since 1970, and whose. A client that has been offered the lock is in the turn and no longer in the list.
--
-- Everything here is an aid and no part of the lock: where an access list forbids one of these commands, or a key holds
-- something else, clients wait without it.

-- How long an offer stands: milliseconds. A client that was stopped holds the others up for so long.
local TURN = 1000
-- Clients that are gone are struck from the list when their turn comes; so many in one run.
local STRUCK = 32

local function millis()
  local clock = redis.call("TIME")
  return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

-- Whose turn it is, and for how many milliseconds; "" if nobody's.
local function read_turn(turn)
  local till, whose = string.match(turn, "^(%d+) (.+)$")
  if not whose then
    return "", 0
  end
  local left = tonumber(till) - millis()
  -- More than it ever was: the clock was set back.
  if left <= 0 or left > TURN then
    return "", 0
  end
  return whose, left
end

-- It is nobody's turn any more, or nobody waits any more.
local function end_turn(list, turn)
  if redis.pcall("EXISTS", list) == 1 then
    redis.pcall("SET", turn, "0 ", "KEEPTTL")
  else
    redis.pcall("DEL", turn)
  end
end

-- Offers the lock to the first in the list who is there, unless `me`, whose call began at `since`, comes before. Returns
-- who has the turn now: "" for nobody.
local function offer(lock, list, turn, me, since)
  for _ = 1, STRUCK do
    local first = redis.pcall("ZRANGE", list, 0, 0, "WITHSCORES")
    local whose, began = first[1], tonumber(first[2])
    if not began then
      break
    end
    if whose == me or since < began or since == began and me < whose then
      break
    end
    -- Where it is forbidden to say so, everybody comes by himself.
    local told = redis.pcall("PUBLISH", "quorlock:wake:" .. whose, lock)
    if type(told) ~= "number" then
      break
    end
    redis.pcall("ZREM", list, whose)
    if told > 0 then
      redis.pcall("SET", turn, string.format("%.0f %s", millis() + TURN, whose), "KEEPTTL")
      return whose
    end
  end
  end_turn(list, turn)
  return ""
end

-- Enters `me` in the list for `life` milliseconds. Returns 1 if that was done.
local function enter(list, turn, me, since, life, whose)
  local done = redis.pcall("ZADD", list, since, me)
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

