-- reply.lua: what a script about locks returns where a number alone does not say it, and no time is left: see acquire.lua.
-- Included behind the node time, and behind the shortest way.
local function reply(status, counter, which, text)
  return { status, counter, 0, 0, now, which or 0, text or "" }
end
