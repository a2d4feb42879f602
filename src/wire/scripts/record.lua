-- record.lua: reads the server's record. Included in the scripts that grant locks.
--
-- Record: a key without expiry, one for each server. sync_record.lua writes it. Its value:
--
--   VERSION SINCE END FORMAT RUN_ID ORIGIN SERVERS EARLIER
--
--   VERSION  15 digits, drawn anew for every write of the record that changes more than SERVERS. A
--               client has the version of
--            its last sync. Every script that grants or confirms a lock compares the two, and does
--            nothing where they differ: the data were lost, restored, copied from another server or
--            deleted, or the longest ttl was raised
--   SINCE    since when this process has kept all data: microseconds since 1970, 16 digits; 0 for
--            ever
--   END      when the quarantine that began at SINCE ends: SINCE and the longest ttl of any lock on
--            these servers, in the same form; the same as SINCE if the server has no quarantine
--   FORMAT   1. Later formats begin with the same seven fields; 240 characters behind them are kept
--   RUN_ID   the run id of that process, from INFO; "?" if INFO does not show it. Of a promoted
--            process, the id of its replication behind it
--   ORIGIN   what the process began with: "new", no data; "old", the data of another process;
--            "vouched", no data, and an operator has confirmed that nothing was lost; "off": the
--            server has no quarantine
--   SERVERS  how many servers the clients have, as sync_record.lua keeps it; 0 if nobody has
--            written that
--   EARLIER  versions out of which this one grew, the latest first, with a blank between two;
--            nothing, and no blank before it, if these data begin with this version. A client finds
--            neither this version nor one of these to be the last that it had from this process:
--            the data are other data, swapped or restored, and are quarantined
--
-- "0" alone is an operator's statement: this process has lost nothing since its start. Any other
-- value is no record.
--
-- A counter is no proof of kept data. A missing one, or one below END, may have been lost and
-- counts as END: lost counters were proposed before SINCE, and were at most half a quarantine ahead
-- of this clock. The other half is for differences between servers' clocks.

-- END: microseconds since 1970.
local function quarantine_end(record)
  return tonumber(string.sub(record, 34, 49))
end

-- Largest lead of a proposal over this node's clock: microseconds. Without a quarantine an hour, so
-- that a client with a wrong clock does not raise counters so far that all others need a second
-- round while the lock is in use.
local function ahead_max(record)
  local length = quarantine_end(record) - tonumber(string.sub(record, 17, 32))
  return length > 0 and length / 2 or 3600000000
end
