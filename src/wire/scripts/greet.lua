-- greet.lua: tells the node how long a quarantine this client needs, and asks since when the node has kept its data. Run at
-- the beginning of every connection, before any command that can set a lock, and again every few hours.
--
-- KEYS[1]  canary
-- ARGV[1]  the longest quarantine that this client needs, whole milliseconds; 0 for none
-- ARGV[2]  the longest that other nodes have told it of, whole milliseconds; 0 for none
-- ARGV[3]  the day on which a client last asked for that one, days since 1970
-- ARGV[4]  "vouch": an operator says that nothing was lost, if there is no canary or this process began without one
--          "slot": the canary is of one slot of a cluster
--          "settle": likewise, and it is not new: this process has kept the slot for longer, if the canary is new and has
--          not changed since it was looked at
--          Absent where there is no cluster
-- ARGV[5]  "vouch", "slot": the epoch of the configuration of a master of a cluster, whose canary this is; absent if not
--          "settle": since when it was found to have kept the slot, microseconds since 1970
-- ARGV[6]  "vouch", "slot": the slots that it serves, as "0-5460,7000-7000"
--          "settle": since when it has
-- ARGV[7]  "settle": the origin of that
--
-- Returns { status, served, longest, day, kept }, and { status, served, longest, day, kept, from } in a cluster
--   status   1 this process has kept all data, and began with the data of another process
--            2 there was no canary: the node is new, or has lost all data
--            3 there was a canary of another process: the node was restarted, promoted, restored or swapped
--            4 this process has kept all data, and began with none
--            5 an operator has said that nothing was lost
--   served   for how long this process has kept all data: milliseconds
--   longest  the longest quarantine that a client asked for today or yesterday: milliseconds
--   day      on which of the two days that was, days since 1970
--   kept     1 if the canary is stored with all that, 0 if it could not be written, which is an error for "vouch"
--   from     since when this process has kept the slot, or all the slots that it serves: microseconds since 1970
--
-- Behind the canary of a master stand, each behind a blank: since when it has served all its slots, the epoch and the slots. A
-- master that gets slots gets a new epoch with them, unless somebody has given them by hand: then the slots show it.

-- include canary.lua
local read_canary, begin_anew, write_canary, process, is_kept_by, LONGEST = canaries()
local clock = redis.call("TIME")
local now = clock[1] * 1000000 + clock[2]

local it = read_canary(KEYS[1], now)
local run = process()
local status = 1
if it.is_statement then
  it.run = run
elseif not it.since then
  status = 2
elseif it.since > now or not is_kept_by(it, run) then
  status = 3
end
if status ~= 1 then
  begin_anew(it, now, run)
elseif it.origin == "new" then
  status = 4
end
local vouches = ARGV[4] == "vouch" and it.origin == "new"
if vouches then
  it.since, it.origin = 0, "vouched"
elseif ARGV[4] == "settle" and status == 4 and string.format("%.0f", it.since) == ARGV[5] then
  it.since, it.origin = tonumber(ARGV[6]), ARGV[7]
  status = it.origin == "old" and 1 or status
end
if it.origin == "vouched" then
  status = 5
end

local heard, heard_on = math.min(tonumber(ARGV[2]), LONGEST), tonumber(ARGV[3])
it.longest = math.max(it.longest, math.min(tonumber(ARGV[1]), LONGEST))
if heard_on == it.day then
  it.longest = math.max(it.longest, heard)
elseif heard_on == it.day - 1 then
  it.before = math.max(it.before, heard)
end

local from = it.since
if ARGV[6] and ARGV[4] ~= "settle" then
  local owned, epoch, slots = string.match(it.rest, "^ (%d+) (%d+) ([%d,-]+)$")
  -- Whether each range lies within one that it had.
  local had = owned and #owned <= 16 and epoch == ARGV[5]
  for low, high in string.gmatch(ARGV[6], "(%d+)-(%d+)") do
    local within = false
    for first, last in string.gmatch(slots or "", "(%d+)-(%d+)") do
      within = within or tonumber(first) <= tonumber(low) and tonumber(high) <= tonumber(last)
    end
    had = had and within
  end
  owned = vouches and 0 or had and tonumber(owned) or now
  it.rest = string.format(" %.0f %s %s", owned, ARGV[5], ARGV[6])
  from = math.max(from, owned)
end
local kept = write_canary(KEYS[1], it, ARGV[4] == "vouch" and redis.call or redis.pcall)

local longest, day = it.longest, it.day
if it.before > longest then
  longest, day = it.before, it.day - 1
end
local reply = { status, math.floor((now - it.since) / 1000), longest, day, kept and 1 or 0 }
if ARGV[5] or ARGV[4] == "slot" then
  reply[6] = from
end
return reply
