-- greet.lua: reads the server's record, and updates it: which process keeps the data, since when, and how long a quarantine this
-- client needs. Runs in the login, before any command that can set a lock, and again when the record has another edition.
--
-- KEYS[1]  record
-- ARGV[1]  an edition that was never used: 15 digits
-- ARGV[2]  the longest quarantine that this client needs, whole milliseconds; 0 for a client without quarantine
-- ARGV[3]  the longest that other servers have reported, whole milliseconds
-- ARGV[4]  "note"
--          "look": writes nothing
--          "vouch": an operator confirms that nothing was lost, if there is no record or this process began without one
--          "slot": the record is of one slot of a cluster
--          "settle": likewise, and it is not new: this process has kept the slot for longer, if the record is new and has not
--          changed since it was looked at
-- ARGV[5]  fingerprint of the ids of all servers of this client, 16 hex digits; empty as long as the client does not know them
-- ARGV[6]  the number of these servers
-- ARGV[7]  earlier fingerprints of the same servers, from before some of them got other ids, separated by spaces
-- ARGV[8]  "vouch", "slot": the epoch of the configuration of a master of a cluster, whose record this is; absent if not
--          "settle": since when it was found to have kept the slot, microseconds since 1970
-- ARGV[9]  "vouch", "slot": the slots that it serves, as "0-5460,7000-7000"
--          "settle": since when it has
-- ARGV[10] "settle": the origin of that
--
-- Returns { status, served, longest, kept, edition, id, others, from }
--   status   1 this process has kept all data, and began with the data of another process
--            2 there was no record: the server is new, or has lost all data
--            3 there was a record of another process: the server was restarted, promoted, restored or swapped
--            4 this process has kept all data, and began with none
--            5 an operator has confirmed that nothing was lost
--            6 the server has no quarantine
--   served   for how long this process has kept all data: milliseconds
--   longest  the longest quarantine that any program needs: milliseconds; with "look" only what is stored
--   kept     1 if the record is stored with all that, 0 if not
--   edition  of the record that is stored; 0 if none is
--   id       of the server; 0 if none is stored
--   others   how many servers another client uses together with this one, if those are not the same as ours; 0 if there is none
--   from     in a cluster: since when this process has kept the slot, or all the slots that it serves: microseconds since 1970
--
-- Behind ID stand the sets of servers in use, FINGERPRINT NUMBER HOUR for each, each behind a blank. HOUR: when a client last
-- noted it, hours since 1970.
-- Behind "@" stand, in the record of a master, each behind a blank: since when it has served all its slots, the epoch and the
-- slots. A master that gets slots gets a new epoch with them, unless somebody has given them by hand: then the slots show it.

-- How many sets are kept besides the client's own.
local SETS_MAX = 4
-- After how many hours a set counts as no longer used.
local UNUSED_AFTER = 24
-- No client needs a longer quarantine: milliseconds.
local LONGEST = 7200000

local function info(section, pattern)
  local text = redis.pcall("INFO", section)
  return type(text) == "string" and string.match(text, "[\r\n]" .. pattern) or nil
end

local clock = redis.call("TIME")
local now = clock[1] * 1000000 + clock[2]
-- A process that was a replica and was promoted is another since: it may have missed what its primary received, and be the one
-- whose record that primary had taken over.
local run = info("server", "run_id:(%w+)") or "?"
if run ~= "?" and info("replication", "second_repl_offset:(%d+)") then
  run = run .. (info("replication", "master_replid:(%w+)") or "")
end
local own, word = math.min(tonumber(ARGV[2]), LONGEST), ARGV[4]

local found = redis.pcall("GET", KEYS[1])
if type(found) == "table" and not string.find(found.err, "WRONGTYPE", 1, true) then
  return found
end
found = type(found) == "string" and found or ""
local edition, since, finish, format, its_run, origin, id, rest =
  string.match(found, "^(%d+) (%d+) (%d+) (%d+) ([%w%?]+) (%l+) (%d+)(.*)$")
if not edition or #edition ~= 15 or #since ~= 16 or #finish ~= 16 then
  edition, since, finish, its_run, id, rest = "0", nil, nil, run, ARGV[1], ""
  if found == "0" then
    since = now - 1000000 * tonumber(info("server", "uptime_in_seconds:(%d+)") or 0)
  end
  format, origin = "1", own == 0 and "off" or "new"
end
since = tonumber(since)
local longest = finish and math.max(0, math.min(math.floor((tonumber(finish) - since) / 1000), LONGEST)) or 0

-- A promoted process without replicas shows after an hour no longer that it was promoted.
local is_kept = run == "?" or run == its_run or run == string.sub(its_run, 1, #run)
local status = 1
if not since then
  status = 2
elseif since > now or not is_kept then
  status = 3
end
if status ~= 1 then
  if since and origin ~= "off" then
    origin = "old"
  end
  since, its_run, format, rest = now, run, "1", ""
elseif origin == "new" then
  status = 4
end

local vouches = word == "vouch" and origin == "new"
if vouches then
  since, origin = 0, "vouched"
elseif word == "settle" and status == 4 and string.format("%.0f", since) == ARGV[8] then
  since, origin = tonumber(ARGV[9]), ARGV[10]
  status = origin == "old" and 1 or status
end
local shown = longest
if origin == "off" then
  status, since, longest, shown = 6, 0, 0, 0
else
  status = origin == "vouched" and 5 or status
  longest = math.max(longest, own)
  -- What others report matters to a server that may have lost it. Otherwise a number that an operator has lowered would come
  -- back from another server.
  if now - since < tonumber(ARGV[3]) * 1000 then
    longest = math.max(longest, math.min(tonumber(ARGV[3]), LONGEST))
  end
end

local sets, served = string.match(rest, "^([^@]*)(.*)$")
local others = 0
if ARGV[5] ~= "" and format == "1" then
  local hour, kept, latest, noted = math.floor(now / 3600000000), {}, 0, false
  for print, count, at in string.gmatch(sets, " (%x+) (%d%d?%d?) (%d+)") do
    -- A time in the future: the clock was set back.
    at = math.min(tonumber(at), hour)
    local is_own = print == ARGV[5]
    local is_earlier = #print ~= 16 or string.find(ARGV[7], print, 1, true)
    local is_others = not is_own and not is_earlier and hour - at < UNUSED_AFTER
    if is_own then
      -- It stays in its place: two clients that put their own first would change the record for each other for ever.
      at, noted = hour, true
    elseif is_others and latest <= at then
      latest, others = at, tonumber(count)
    end
    if is_own or is_others then
      kept[#kept + 1] = string.format(" %s %s %.0f", print, count, at)
    end
  end
  if not noted then
    kept[#kept + 1] = string.format(" %s %s %.0f", ARGV[5], ARGV[6], hour)
  end
  if #kept > SETS_MAX + 1 then
    table.remove(kept, 1)
  end
  sets = table.concat(kept)
end

local from = since
if ARGV[9] and word ~= "settle" then
  local owned, epoch, slots = string.match(served, "^@ (%d+) (%d+) ([%d,-]+)$")
  -- Whether each range lies within one that it had. So many that it takes long count as new.
  local same = slots == ARGV[9]
  local had = owned and #owned <= 16 and epoch == ARGV[8] and (same or #ARGV[9] < 4096)
  for low, high in string.gmatch(had and not same and ARGV[9] or "", "(%d+)-(%d+)") do
    local within = false
    for first, last in string.gmatch(slots or "", "(%d+)-(%d+)") do
      within = within or tonumber(first) <= tonumber(low) and tonumber(high) <= tonumber(last)
    end
    had = had and within
  end
  owned = (vouches or origin == "off") and 0 or had and tonumber(owned) or now
  served = string.format("@ %.0f %s %s", owned, ARGV[8], ARGV[9])
  from = math.max(from, owned)
end

local value =
  string.format("%016.0f %016.0f %s %s %s %s%s%s", since, since + longest * 1000, format, its_run, origin, id, sets, served)
local kept = value == string.sub(found, 17)
if not kept and word ~= "look" then
  local done = redis.pcall("SET", KEYS[1], ARGV[1] .. " " .. value)
  kept = done.ok ~= nil
  if not kept and (word == "vouch" or edition == "0") then
    return done
  end
  edition = kept and ARGV[1] or edition
elseif word == "look" then
  -- What this client needs is not noted.
  longest = shown
end
id = edition ~= "0" and tonumber(id) or 0
local age = math.floor((now - since) / 1000)
return { status, age, longest, kept and 1 or 0, tonumber(edition), id, others, from }
