-- reservation.lua: which of the waiting clients may take a free lock. Included in the scripts that grant and free locks,
-- where the waiting list may not be empty.
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
-- Readers: each call that wants to read is a member of its own, the client's id with "r" and a number behind it. Readers that
-- no writer stands before go in together: the lock is reserved for all of them at once, as "*" and their members with commas
-- between. Whoever makes the lock free or shared, or removes a writer from the list, tells them; so where the lock is free or
-- shared, every reader in the list has a writer before it, or polls.
--
-- All of this decides who comes first, and nothing about who holds the lock: where an access list forbids one of these
-- commands, or one of the keys has another type, clients wait without it.

-- The value of the lock key while it is shared by readers.
local SHARED = "quorlock:shared"
-- How long a reservation lasts: milliseconds. A client that was stopped holds up the others for so long, and one that polls
-- does so more often than that (`logic::pause` has the same number).
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
    for member in string.gmatch(reserved_for, "[^*,]+") do
      redis.pcall("ZREM", list, member)
    end
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

-- The client whose call `member` is.
local function client_of(member)
  return string.sub(member, 1, 16)
end

local function is_reader(member)
  return string.find(member, "^%x+r") ~= nil
end

-- For whom else than `me` the lock is reserved; "" for none.
local function reserved_for_others(reserved_for, me)
  if string.sub(reserved_for, 1, 1) ~= "*" then
    return reserved_for ~= me and reserved_for or ""
  end
  local others = {}
  for member in string.gmatch(reserved_for, "[^*,]+") do
    if member ~= me then
      others[#others + 1] = member
    end
  end
  return #others > 0 and "*" .. table.concat(others, ",") or ""
end

-- Reserves the lock for the first client in the list that is still there, unless `me`, whose call began at `since`, comes
-- before it. Returns for which client it is reserved now, "" for none, and for how many milliseconds `me` may not take it.
-- If the first one reads, it is reserved for all readers that stand before the first writer. `expected`: the readers for
-- which it is reserved already, while it is shared: only more readers can be let in then.
local function reserve(lock, list, key, me, since, expected)
  local gone, readers, size, at = {}, {}, 1, 0
  local reserved_for, began, left, is_done = "", nil, 0, false
  repeat
    local some = redis.pcall("ZRANGE", list, at, at + size - 1, "WITHSCORES")
    is_done = #some < 2 * size
    for i = 1, #some, 2 do
      local member, entered = some[i], tonumber(some[i + 1])
      local reads = is_reader(member)
      if member == me or since < entered or since == entered and me < member
        or not reads and (expected or #readers > 0) then
        is_done = true
        break
      end
      local of = not reads and #member > 16 and string.sub(member, 18) or lock
      local told = redis.pcall("PUBLISH", "quorlock:wake:" .. client_of(member), of)
      local is_told = type(told) == "number" and told > 0
      if is_told or told == 0 and entered % 1 == 0 then
        gone[#gone + 1] = member
      end
      if is_told or told ~= 0 or entered % 1 ~= 0 then
        -- Notified, or it polls: it will come.
        left, began = RESERVATION, began or entered
        if not reads then
          reserved_for, is_done = member, true
          break
        end
        readers[#readers + 1] = member
      end
    end
    at = at + size
    size = math.min(size * 8, REMOVED_MAX - at)
  until is_done or size <= 0
  if #gone > 0 then
    redis.pcall("ZREM", list, unpack(gone))
  end
  if #readers > 0 or expected and expected ~= "" then
    if expected and expected ~= "" then
      table.insert(readers, 1, string.sub(expected, 2))
    end
    reserved_for = "*" .. table.concat(readers, ",")
  end
  if reserved_for ~= "" then
    set_reservation(key, string.format("%.0f %s %.0f", millis() + RESERVATION, reserved_for, began or 0))
  else
    end_reservation(list, key)
    -- If the list was not read to its end, the next command goes on with it.
    left = is_done and 0 or 1
  end
  return reserved_for, left
end

-- Enters `me` in the list for `life` milliseconds; `told` is "1" if it is notified of releases. Returns 1 if that was done.
local function enter(list, key, me, since, life, told, reserved_for)
  -- A missing list gets no member without an end: PEXPIRE of a missing key shows only whether the access list permits it.
  local kept = redis.pcall("PTTL", list)
  local permitted = kept ~= -2 or type(redis.pcall("PEXPIRE", list, life)) == "number"
  if type(kept) ~= "number" or not permitted then
    return 0
  end
  local done = redis.pcall("ZADD", list, told == "1" and since or since .. ".5", me)
  if type(done) ~= "number" then
    return 0
  end
  -- Another client may have entered for longer. The reservation lives as long as the list: without it no client would be
  -- notified.
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
