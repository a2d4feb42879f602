-- record_version.lua: the script does nothing if the record has another version than at the
-- client's sync: see record.lua.
if not record or string.sub(record, 1, 15) ~= ARGV[5] then
  return -3
end
