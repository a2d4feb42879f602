-- check.lua: whether the server takes writes. Changes nothing.
--
-- KEYS[1]  record
--
-- Returns the server's time, as TIME does; an error if it takes no writes, or does not permit them to this user.
if redis.call("EXISTS", KEYS[1]) == 1 then
  redis.call("SET", KEYS[1], "", "NX")
else
  redis.call("SET", KEYS[1], "", "XX")
end
return redis.call("TIME")
