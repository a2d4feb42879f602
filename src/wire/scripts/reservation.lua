-- reservation.lua: which of the waiting clients may take a free lock. Included in acquire.lua and release.lua, where the
-- waiting list may not be empty.
--
-- Waiting list: a sorted set with one member for each client that waits, scored by the time at which its call began. That
-- time is the same on all nodes, so all of them have the same order. Half a microsecond is added for a client that cannot
-- be notified over the connection that entered it, and polls. A member is the id of a client, or that, a slash, and what
-- this client is told instead of the lock key: it waits for more than this lock.
-- Reservation: a string that exists as long as any client waits. "0 " if the lock is reserved for none; otherwise until
-- when, in milliseconds since 1970, for which client, and when its call began. A client that was notified is in the
-- reservation and no longer in the list. One that polls stays in the list until it takes the lock, and is removed if it
-- does not before its reservation ends.
--
-- All of this decides who comes first, and nothing about who holds the lock: where an access list forbids one of these
-- commands, or one of the keys has another type, clients wait without it.

-- How long a reservation lasts: milliseconds. A client that was stopped holds up the others for so long, and one that polls
-- does so more often than that (`logic::wait` has the same number).
local RESERVATION = 1000
-- How many clients that are gone one run removes from the list. Each takes a server about a microsecond.
local REMOVED_MAX = 1000

local function millis()
  local clock = redis.call("TIME")
  return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

-- For which client the lock is reserved, "" for none, for how many milliseconds, and when its call began. `now`: the node
-- time, microseconds since 1970, if it is known.
local function read_reservation(value, list, now)
  local till, reserved_for, began = string.match(value, "^(%d+) (%S+) ?(%d*)$")
  if not reserved_for then
    return "", 0, math.huge
  end
  local left = tonumber(till) - (now and math.floor(now / 1000) or millis())
  -- Longer than any reservation: the clock was set back.
  if left <= 0 or left > RESERVATION then
    redis.pcall("ZREM", list, reserved_for)
    return "", 0, math.huge
  end
  return reserved_for, left, tonumber(began) or math.huge
end

-- Only changes a key that exists, which has an expiry, and keeps that.
local function set_reservation(key, value)
  redis.pcall("SET", key, value, "XX", "KEEPTTL")
end

-- The lock is reserved for no client any more. `me` leaves the list, if it is given.
local function end_reservation(list, key, me)
  local waits = redis.pcall("EXISTS", list) == 1
  if waits and me and redis.pcall("ZREM", list, me) == 1 then
    waits = redis.pcall("EXISTS", list) == 1
  end
  if waits then
    set_reservation(key, "0 ")
  else
    redis.pcall("DEL", key)
  end
end

-- Reserves the lock for the first client in the list that is still there, unless `me`, whose call began at `since`, comes
-- before it. Returns for which client it is reserved now, "" for none, and for how many milliseconds `me` may not take it.
local function reserve(lock, list, key, me, since)
  local gone, size = {}, 1
  local reserved_for, began, left, is_done = "", 0, 0, false
  repeat
    local some = redis.pcall("ZRANGE", list, #gone, #gone + size - 1, "WITHSCORES")
    is_done = #some < 2 * size
    for i = 1, #some, 2 do
      reserved_for, began = some[i], tonumber(some[i + 1])
      if reserved_for == me or since < began or since == began and me < reserved_for then
        reserved_for, is_done = "", true
        break
      end
      local of = #reserved_for > 16 and string.sub(reserved_for, 18) or lock
      local told = redis.pcall("PUBLISH", "quorlock:wake:" .. string.sub(reserved_for, 1, 16), of)
      local is_told = type(told) == "number" and told > 0
      if is_told or told == 0 and began % 1 == 0 then
        gone[#gone + 1] = reserved_for
      end
      if is_told or told ~= 0 or began % 1 ~= 0 then
        -- Notified, or it polls: it will come.
        left, is_done = RESERVATION, true
        break
      end
      reserved_for = ""
    end
    size = math.min(size * 8, REMOVED_MAX - #gone)
  until is_done or size == 0
  if #gone > 0 then
    redis.pcall("ZREM", list, unpack(gone))
  end
  if reserved_for ~= "" then
    set_reservation(key, string.format("%.0f %s %.0f", millis() + RESERVATION, reserved_for, began))
  else
    end_reservation(list, key)
    -- If the list was not read to its end, the next command goes on with it.
    left = is_done and 0 or 1
  end
  return reserved_for, left
end

-- Enters `me` in the list for `life` milliseconds; `told` is "1" if it is notified of releases. Returns 1 if that was done.
local function enter(list, key, me, since, life, told, reserved_for)
  local done = redis.pcall("ZADD", list, told == "1" and since or since .. ".5", me)
  if type(done) ~= "number" then
    return 0
  end
  -- Another client may have entered for longer. The reservation lives as long as the list: without it no client would be
  -- notified.
  local kept = redis.call("PTTL", list)
  if kept < tonumber(life) then
    redis.call("PEXPIRE", list, life)
    kept = life
  end
  if reserved_for == "" or reserved_for == me then
    redis.call("SET", key, "0 ", "PX", kept)
  else
    redis.call("PEXPIRE", key, kept)
  end
  return 1
end
