-- greet.lua: tells the node how long a silence this client needs, and asks since when the node remembers. Run at the
-- beginning of every connection, before anything that can set a lock, and again every few hours.
--
-- KEYS[1]  canary
-- ARGV[1]  the longest silence that this client asks for, whole milliseconds; 0 for none
-- ARGV[2]  the longest that it was told of by other nodes, whole milliseconds; 0 for none
-- ARGV[3]  when that was last asked for: days since 1970
-- ARGV[4]  "vouch" if nothing was lost where there is no canary, or this process began with none
--
-- Returns { status, served, longest, day, kept }
--   status   1 this process has been keeping what it was told, and began with what another had kept
--            2 there was no canary: the node is new, or has lost everything
--            3 there was one of another process: the node was restarted, promoted, restored or swapped
--            4 this process has been keeping what it was told, and began with nothing
--            5 it has lost nothing, says somebody who knows
--   served   since when it has been keeping that: milliseconds ago
--   longest  the longest silence that anybody asked for today or yesterday: milliseconds
--   day      which of the two days that was, since 1970
--   kept     1 if the canary says all that now, 0 if it could not be written; to vouch that is an error

-- include canary.lua
local read_canary, begin_anew, write_canary, process, LONGEST = canaries()
local clock = redis.call("TIME")
local now = clock[1] * 1000000 + clock[2]

local it = read_canary(KEYS[1], now)
local run = process()
local status = 1
if it.is_word then
  it.run = run
elseif not it.since then
  status = 2
elseif it.since > now or (run ~= "?" and run ~= it.run) then
  status = 3
end
if status ~= 1 then
  begin_anew(it, now, run)
elseif it.origin == "new" then
  status = 4
end
if ARGV[4] == "vouch" and it.origin == "new" then
  it.since, it.origin = 0, "vouched"
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
local kept = write_canary(KEYS[1], it, ARGV[4] and redis.call or redis.pcall)

local longest, day = it.longest, it.day
if it.before > longest then
  longest, day = it.before, it.day - 1
end
return { status, math.floor((now - it.since) / 1000), longest, day, kept and 1 or 0 }
