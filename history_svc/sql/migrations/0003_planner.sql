-- Planner settings for every session of this database: the statements of history are short and known, and compiling, caching or spreading
-- their plans only costs. A role that may not alter the database goes without.
do $$
begin
  execute format('alter database %I set jit = off', current_database());
  execute format('alter database %I set plan_cache_mode = force_custom_plan', current_database());
  execute format('alter database %I set max_parallel_workers_per_gather = 0', current_database());
exception when insufficient_privilege then
  raise notice 'the planner settings of database % are left as they are: %', current_database(), sqlerrm;
end
$$;
