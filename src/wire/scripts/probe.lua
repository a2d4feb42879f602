-- probe.lua: which commands the access list forbids, of all that scripts use. Each is tried, on a key that nobody has and in a
-- way that changes nothing.
--
-- KEYS[1]  a key that no lock has, and that is not there
-- ARGV[1]  the end of a channel that nobody listens to
--
-- Returns the commands, as access lists call them, with a space between; "" if none is forbidden. An error if the server takes
-- no writes for another reason: it is full, for example.
local forbidden = {}

local function try(name, ...)
  local reply = redis.pcall(...)
  local err = type(reply) == "table" and reply.err
  -- Servers say it in three ways.
  if err and (string.find(err, "NOPERM", 1, true) or string.find(err, "ACL failure in script", 1, true)
    or string.find(err, "The user executing the script can't", 1, true)) then
    forbidden[#forbidden + 1] = name
    return false
  end
  return err and reply
end

local key = KEYS[1]
try("get", "GET", key)
try("mget", "MGET", key)
local refused = try("set", "SET", key, "", "XX")
if refused then
  return refused
end
try("del", "DEL", key)
try("exists", "EXISTS", key)
try("pexpire", "PEXPIRE", key, 1)
try("pttl", "PTTL", key)
try("time", "TIME")
try("zadd", "ZADD", key, "XX", 1, "a")
try("zrange", "ZRANGE", key, 0, 0)
try("zrem", "ZREM", key, "a")
try("publish", "PUBLISH", "quorlock:wake:" .. ARGV[1], "")
try("zscore", "ZSCORE", key, "a")
try("zremrangebyscore", "ZREMRANGEBYSCORE", key, 0, 0)
try("pubsub|numsub", "PUBSUB", "NUMSUB", "quorlock:wake:" .. ARGV[1])
try("zcard", "ZCARD", key)
try("zcount", "ZCOUNT", key, 0, 0)
try("zrangebyscore", "ZRANGEBYSCORE", key, 0, 0)
try("scan", "SCAN", 0, "COUNT", 1)
try("info", "INFO", "server")
return table.concat(forbidden, " ")
