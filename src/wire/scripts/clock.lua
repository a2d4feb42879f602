-- clock.lua: the node time, microseconds since 1970.
local clock = redis.call("TIME")
local now = clock[1] * 1000000 + clock[2]
