-- acquire.lua: takes a free lock, all of several locks or none, or one slot of a semaphore; and
-- offers a fencing token.
--
-- KEYS[1]      lock keys, n of them
-- KEYS[n + 1]  fencing counters, in the same order, as all that follows
-- then         record
-- then         marks, waiting lists, readers: n of each; for slots one mark and one list
-- ARGV[1]  owner token
-- ARGV[2]  time to live of the lock, whole milliseconds, at least 1
-- ARGV[3]  proposed fencing token, a whole number below 2^53
-- ARGV[4]  life of the counter, whole milliseconds; 0 for no end
-- ARGV[5]  version of the record that the client connected with
-- ARGV[6]  "BEGAN LIFE CLIENT FIRST SLOT GETS_MESSAGES". One argument, since each takes time
--     BEGAN   when the call began, microseconds since 1970: a free lock is handed over to a call
--             that has waited for longer
--     LIFE    of the waiting list, whole milliseconds, if the call enters it when it is refused;
--             empty if not
--     CLIENT  client id; empty if the call does not wait
--     FIRST   life of a lock that is handed over, whole milliseconds
--     SLOT    "-" for all locks; for one of the slots the one to begin with, from 1
--     GETS_MESSAGES
--             "1" if the client gets messages over this connection, "0" if it polls
--
-- Returns the node time if all was granted and the proposal is the counter of each now; -3 if the
-- record has another version, and nothing was done; otherwise
-- { status, counter, time left, entered, node time, which, text }
--   status     1 a slot is granted, and the proposal is its counter now
--              2 granted, but a counter is not below the proposal
--              0 held by another owner, to whom it may have been handed over just now; or no slot
--                is free
--              6 held by readers
--              5 not looked at: the proposal is too far ahead of the node time and of the counter
--             -1 a lock key or a counter is not a string
--             -2 a counter is not a whole number below 2^53
--   counter    the largest that was found; 0 if that is no whole number below 2^53. With status 2
--              the end of the server's quarantine, if that is larger
--   time left  of the lock that is in the way, or until the first slot can be free: milliseconds,
--              -1 if it has no end
--   entered    1 if the call is in the waiting list now, of several locks in that of the one that
--                is in the way
--   node time  microseconds since 1970
--   which      slot was granted, or which of several locks it is about, from 1; 0 for none
--   text       with status 0 and 6 the label in the lock's value, behind the random part, which
--              stays secret
--
-- A key with our token is a grant and gets its full life: it was handed over to us, or the command
-- runs twice. But a counter equal to our proposal is never an acceptance: it may be another
-- owner's.
--
-- A call waits in one list of a node at a time: that of the conflicting lock. If this lock is
-- handed over to it and another one conflicts, the call hands the first one on in the same step. So
-- no free lock is kept for a call that cannot have all of them.
--
-- All nodes begin at the same slot, so nodes with the same free slots grant the same one.

-- include clock.lua
local proposal = tonumber(ARGV[3])

-- The shortest way for one lock, before any function, because Lua makes each function again in
-- every run. Four commands, because this runs on every node for every acquisition. All is read
-- before the lock is set: an access list that forbids one of the commands leaves no lock behind. No
-- node refuses a proposal with so small a lead: half of the shortest quarantine, microseconds.
-- Counters are compared as text if they have the length of times, which orders numbers correctly;
-- other text of that length may be replaced. The record's END is text of that length as well,
-- characters 34 to 49.
local found
if #KEYS == 6 then
  found = redis.call("MGET", unpack(KEYS, 1, 4))
  local lock, seen, record, mark = unpack(found)
  if not lock and not mark and proposal <= now + 50000
    and seen and #seen == 16 and #ARGV[3] == 16 and seen < ARGV[3] and ARGV[4] ~= "0"
    and record and string.sub(record, 1, 15) == ARGV[5] and string.sub(record, 34, 49) <= seen
    and redis.call("SET", KEYS[1], ARGV[1], "NX", "PX", ARGV[2]) then
    redis.call("SET", KEYS[2], ARGV[3], "PX", ARGV[4])
    return now
  end
end

local call_began, life, client, first, slot, gets_messages =
  string.match(ARGV[6], "^(%d+) (%d*) (%x*) (%d+) (%-?%d*) (%d)$")
local has_slots, from = slot ~= "-", tonumber(slot)
local n = has_slots and (#KEYS - 3) / 2 or (#KEYS - 1) / 5
local lists = has_slots and 1 or n
found = found or redis.call("MGET", unpack(KEYS, 1, 2 * n + 1 + lists))
local record = found[2 * n + 1]
-- include record_version.lua

-- include counter.lua
-- include reply.lua
-- include record.lua
-- Keys of another type: no free locks.
local present, misused = 0, {}
for i = 1, 2 * n do
  present = present + (found[i] and 1 or 0)
end
if present < 2 * n and redis.call("EXISTS", unpack(KEYS, 1, 2 * n)) ~= present then
  for i = 1, 2 * n do
    misused[i] = not found[i] and redis.call("EXISTS", KEYS[i]) == 1
  end
end

-- The wanted ones, and the conflicting one of several.
local wanted, which = {}, 0
if has_slots then
  for i = 0, n - 1 do
    local at = (from - 1 + i) % n + 1
    if found[at] == ARGV[1] then
      wanted[1] = at
    elseif not found[at] and not misused[at] then
      wanted[1] = wanted[1] or at
    end
  end
else
  for i = n, 1, -1 do
    wanted[n + 1 - i] = i
    which = found[i] and found[i] ~= ARGV[1] and i or which
  end
end

local function counters_of_wanted()
  local largest, bad, bad_which = 0, 0, 0
  for _, i in ipairs(wanted) do
    local number = whole(found[n + i])
    largest = math.max(largest, number or 0)
    if misused[i] or misused[n + i] then
      bad, bad_which = -1, i
    elseif found[n + i] and not number then
      bad, bad_which = -2, i
    end
  end
  return largest, bad, bad_which
end
local largest, bad, bad_which = counters_of_wanted()
if wanted[1] and proposal > now + ahead_max(record) and proposal > largest + 1 then
  return reply(5, largest)
end

local has_waiting = which ~= 0 or not wanted[1]
for i = 1, lists do
  has_waiting = has_waiting or found[2 * n + 1 + i]
end
if has_waiting then
  -- include handover.lua
  local me, offer = client .. "w" .. ARGV[1], { ARGV[3], ARGV[4], first }
  local function keys_of(i)
    local list = 2 * n + 1 + (has_slots and 1 or i)
    return { KEYS[i], KEYS[n + i], KEYS[list + lists], KEYS[list],
      KEYS[list + 2 * lists] or KEYS[i] }
  end
  local function hands_over(i, to, since)
    local mark = found[2 * n + 1 + (has_slots and 1 or i)]
    if mark and (not found[i] or found[i] == SHARED) and not misused[i] then
      found[i] = hand_over(keys_of(i), found[i], found[n + i], record, mark, offer, to, since)
    end
  end

  for i = 1, lists do
    if found[2 * n + 1 + i] then
      leave(keys_of(i), me)
    end
  end
  if has_slots and wanted[1] and found[wanted[1]] ~= ARGV[1] then
    -- A free slot goes to each earlier call. The remaining one is ours.
    wanted = {}
    for i = 0, n - 1 do
      local at = (from - 1 + i) % n + 1
      if not wanted[1] and not found[at] and not misused[at] then
        hands_over(at, me, tonumber(call_began))
        if not found[at] then
          wanted[1] = at
        end
      end
    end
    largest, bad, bad_which = counters_of_wanted()
  elseif not has_slots and which == 0 then
    for i = 1, n do
      if which == 0 and not found[i] then
        hands_over(i, me, tonumber(call_began))
        which = found[i] and i or 0
      end
    end
  end

  if which ~= 0 or not wanted[1] then
    -- It enters the list in the same step, so that it misses no later release, and hands its own
    -- locks on.
    local left, text, list = -1, "", 1
    if has_slots then
      for i = 1, n do
        local ends = redis.call("PTTL", KEYS[i])
        left = ends >= 0 and (left < 0 or ends < left) and ends or left
        bad_which = misused[i] and i or bad_which
      end
      if left < 0 and bad_which ~= 0 then
        return reply(-1, 0, bad_which)
      end
    else
      left, text, list = redis.call("PTTL", KEYS[which]), label_in(found[which]), which
      for i = 1, n do
        if found[i] == ARGV[1] then
          redis.call("DEL", KEYS[i])
          found[i] = nil
        end
        if i ~= which then
          hands_over(i, "", math.huge)
        end
      end
    end
    local is_read, entered = found[which] == SHARED, 0
    if life ~= "" then
      local mark = found[2 * n + 1 + list]
      if gets_messages == "0" and is_read then
        mark = string.format("%.0f", now / 1000 + POLLS)
      end
      entered = enter(keys_of(list), me, call_began, life, gets_messages, mark)
    end
    return { is_read and 6 or 0, largest, left, entered, now, n > 1 and which or 0, text }
  end
end
if bad ~= 0 then
  return reply(bad, 0, (n > 1 or has_slots) and bad_which or 0)
end

-- The proposal stays stored unless the counter was larger: a later raise needs a counter of each
-- lock. END is not stored: a lock granted by other servers during this quarantine has a smaller
-- token, and extend.lua refuses a token below the counter.
for _, i in ipairs(wanted) do
  if (whole(found[n + i]) or 0) < proposal then
    set_counter(redis.call, KEYS[n + i], ARGV[3], ARGV[4])
    -- Deletes nothing: only who may release the lock gets it. Not as the first write, behind which
    -- a full server runs SET.
    if not found[i] then
      redis.call("DEL", KEYS[i])
    end
  end
  -- Never shorter: the owner relies on its extensions.
  local left = found[i] and redis.call("PTTL", KEYS[i])
  if not left then
    redis.call("SET", KEYS[i], ARGV[1], "PX", ARGV[2])
  elseif left >= 0 and left < tonumber(ARGV[2]) then
    redis.call("PEXPIRE", KEYS[i], ARGV[2])
  end
end
largest = math.max(largest, quarantine_end(record))
local is_accepted = proposal > largest
if is_accepted and not has_slots then
  return now
end
return reply(is_accepted and 1 or 2, largest, has_slots and wanted[1] or 0)
