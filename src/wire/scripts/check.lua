-- check.lua: whether the server takes writes. Changes nothing.
--
-- KEYS[1]  record
--
-- Returns the server's time, as TIME does; an error if it takes no writes, or does not permit them to this user.
redis.call("SET", KEYS[1], "", redis.call("EXISTS", KEYS[1]) == 1 and "NX" or "XX")
return redis.call("TIME")
