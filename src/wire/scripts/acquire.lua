-- acquire.lua: takes a lock that is free, and offers a fencing token.
--
-- KEYS[1]  lock key
-- KEYS[2]  fencing counter
-- KEYS[3]  waiting list
-- KEYS[4]  reservation
-- KEYS[5]  record
-- ARGV[1]  owner token
-- ARGV[2]  time to live of the lock, whole milliseconds, at least 1
-- ARGV[3]  proposed fencing token, a whole number below 2^53
-- ARGV[4]  life of the counter, whole milliseconds; 0 for no end
-- ARGV[5]  edition of the record that the client was greeted with
-- ARGV[6]  "BEGAN LIFE CLIENT TOLD": what is needed only if others hold the lock or wait for it. In one argument, since each
--          argument takes time
--     BEGAN   when the call began, microseconds since 1970: a free lock is left to a client that has waited for longer
--     LIFE    of the waiting list, whole milliseconds, if the client enters it when it is refused; empty if not
--     CLIENT  client id; empty if the call does not wait
--     TOLD    "1" if the client is notified of releases over this connection, "0" if it polls
--
-- Returns the node time if granted and the proposal is the counter now; -3 if the record has another edition, and nothing
-- was done; otherwise
-- { status, counter, time left, entered, node time }, and with status 0 the holder
--   status     2 granted, but the counter is not below the proposal
--              0 held by another owner
--              6 held by readers
--              3 free, but reserved for another client
--              5 not looked at: the proposal is too far ahead of the node time and of the counter
--             -1 the lock key or the counter is not a string
--             -2 the counter is not a whole number below 2^53
--   counter    as it was found; 0 if that is no whole number below 2^53. With status 2 the end of the server's quarantine, if
--              that is larger
--   time left  of the lock or of the reservation: milliseconds, -1 if it has no end
--   entered    1 if the client is in the waiting list now
--   node time  microseconds since 1970
--   holder     the label in the lock's value, behind the random part, which stays secret; "" if there is none
--
-- A free lock with an empty waiting list takes four commands and the shortest way to a return, because this runs on every
-- node for every acquisition. Needs SET with GET: Redis 6.2. The lock is set before the record and the reservation are read,
-- and deleted again if need be: a script is atomic, so no other command sees it.
--
-- A key that already holds our token is a grant (the command may have been executed twice), but a counter that
-- already is our proposal is never an acceptance: it may be another owner's.

local clock = redis.call("TIME")
local now = clock[1] * 1000000 + clock[2]
-- No node refuses a proposal that is so little ahead: half of the shortest quarantine, microseconds. Others are rare.
local is_ahead = tonumber(ARGV[3]) > now + 50000

-- The shortest way, before any function: Lua makes each of them anew in every run. Counters are compared as text where the
-- lengths are those of times, which orders numbers correctly; text of that length that is not a number may be replaced. The
-- record's END is text of that length as well, characters 34 to 49.
local taken, found, seen
if not is_ahead then
  taken = redis.call("SET", KEYS[1], ARGV[1], "NX", "PX", ARGV[2])
end
if taken then
  found = redis.call("MGET", KEYS[4], KEYS[5])
  local record = found[2]
  if not found[1] and record and string.sub(record, 1, 15) == ARGV[5] and ARGV[4] ~= "0" then
    seen = redis.pcall("SET", KEYS[2], ARGV[3], "PX", ARGV[4], "GET")
    if type(seen) == "string" and #seen == 16 and #ARGV[3] == 16 and seen < ARGV[3] and string.sub(record, 34, 49) <= seen then
      return now
    end
  end
end

-- From here on it is rare.
-- include counter.lua
-- include record.lua
if is_ahead then
  local found_counter, found_record = unpack(redis.call("MGET", KEYS[2], KEYS[5]))
  local counter = whole(found_counter) or 0
  if not found_record or string.sub(found_record, 1, 15) ~= ARGV[5] then
    return -3
  end
  if tonumber(ARGV[3]) > now + ahead_max(found_record) and tonumber(ARGV[3]) > counter + 1 then
    return { 5, counter, 0, 0, now }
  end
  taken = redis.call("SET", KEYS[1], ARGV[1], "NX", "PX", ARGV[2])
end
local owner, counter, reservation, record = ARGV[1], false, nil, nil
if taken then
  reservation, record = unpack(found or redis.call("MGET", KEYS[4], KEYS[5]))
else
  owner, counter, reservation, record = unpack(redis.call("MGET", KEYS[1], KEYS[2], KEYS[4], KEYS[5]))
end
if not record or string.sub(record, 1, 15) ~= ARGV[5] then
  if taken then
    redis.call("DEL", KEYS[1])
  end
  return -3
end

if reservation or not taken then
  -- include reservation.lua
  local call_began, life, me, told = string.match(ARGV[6], "^(%d+) (%d*) (.*) (%d)$")
  local reserved_for, left = "", 0
  if not owner then
    return { -1, 0, 0, 0, now }
  end
  -- The answer to a client that does not get the lock. It enters the waiting list in the same step, so that no release
  -- after this is missed.
  local function refuse(status, counter, left, holder)
    local entered = 0
    if life ~= "" then
      entered = enter(KEYS[3], KEYS[4], me, call_began, life, told, reserved_for)
    end
    return { status, whole(counter) or 0, left, entered, now, holder }
  end

  if reservation then
    reserved_for, left = read_reservation(reservation, KEYS[3], now)
    if taken and (reserved_for == "" or reserved_for ~= me) then
      if reserved_for == "" then
        reserved_for, left = reserve(KEYS[1], KEYS[3], KEYS[4], me, tonumber(call_began))
      end
      if left > 0 then
        redis.call("DEL", KEYS[1])
        return refuse(3, redis.pcall("GET", KEYS[2]), left)
      end
    end
  end

  if owner == SHARED then
    return refuse(6, counter, redis.call("PTTL", KEYS[1]))
  end
  if owner ~= ARGV[1] then
    -- A counter that is not a number is reported when the lock is granted.
    local named = #owner <= 96 and select(2, string.find(owner, "^%x+ ")) == 33 and not string.find(owner, "\r\n%p")
    local holder = named and string.sub(owner, 34) or ""
    return refuse(0, counter, redis.call("PTTL", KEYS[1]), holder)
  end

  if reservation and me ~= "" then
    if reserved_for == "" or reserved_for == me then
      end_reservation(KEYS[3], KEYS[4], me)
    else
      redis.pcall("ZREM", KEYS[3], me)
    end
  end
end

if seen == nil then
  seen = set_counter(redis.pcall, KEYS[2], ARGV[3], ARGV[4])
end
-- Without a counter that orders tokens there is no grant, and the old value is put back.
local number = whole(seen)
if not seen or number then
  local least = math.max(number or 0, quarantine_end(record))
  if least < tonumber(ARGV[3]) then
    return now
  end
  -- The proposal stays stored unless the counter was larger. END is not stored: a lock that other servers have granted during
  -- this quarantine has a smaller token, and extend.lua refuses a token below the counter.
  if number and number >= tonumber(ARGV[3]) then
    set_counter(redis.pcall, KEYS[2], seen, ARGV[4])
  end
  return { 2, least, 0, 0, now }
end
redis.call("DEL", KEYS[1])
if type(seen) == "string" then
  set_counter(redis.pcall, KEYS[2], seen, ARGV[4])
  return { -2, 0, 0, 0, now }
end
if string.find(seen.err, "WRONGTYPE", 1, true) then
  return { -1, 0, 0, 0, now }
end
return seen
