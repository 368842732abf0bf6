-- Turns that run in the background: who may take one, what its viewers see, and which request stands for which response.

alter table response
  add column background boolean not null default false,
  add column resume_state bytea not null default '';         -- what a process needs that takes the turn over

-- Turns that wait or run, one row each until the turn ends. Whoever runs one holds the lease of its response.
create table work (
  response_id text primary key,
  tree_key bigint not null,
  owner text not null,
  conversation_id text not null,                             -- '' without a conversation of this owner
  request bytea not null,
  attempts int not null default 0,                           -- how often it was taken and not given back
  cancel_requested boolean not null default false,
  queued_at timestamptz not null default clock_timestamp()
);
create index work_by_age on work (queued_at);
create index work_by_owner on work (owner);

-- The stream events of background responses, as far as they are kept.
create table event_log (
  tree_key bigint not null,
  response_id text not null,
  owner text not null,
  last_number bigint not null default -1,
  closed boolean not null default false,                     -- no further event will come
  ended_at timestamptz,                                      -- when the turn ended
  primary key (tree_key, response_id)
);
create index event_log_ended on event_log (ended_at) where ended_at is not null;

-- Neighbouring events, as they were appended together.
create table event_batch (
  tree_key bigint not null,
  response_id text not null,
  first_number bigint not null,
  last_number bigint not null,
  owner text not null,
  types text[] not null,
  events bytea[] not null,
  bytes bigint not null,
  primary key (tree_key, response_id, first_number)
);
alter table event_batch alter column events set storage external; -- compressed by nobody's processor: a log is read once or twice and then gone

create table idempotency (
  owner text not null,
  key text not null,
  request_hash bytea not null,
  response_id text not null,
  expires_at timestamptz not null,
  primary key (owner, key)
);
create index idempotency_expiring on idempotency (expires_at);

-- Stores a response as queued and its turn as work. The outcome is
--   queued
--   repeated    it was there already; nothing is written
--   conflict    the response id is stored with other content; nothing is written
--   full        the owner has `queue_limit` turns waiting; nothing is written
--   not_found   the tree is another owner's; nothing is written
--
-- Of two equal calls at once the later one ends in a unique violation on response_pkey; run again, it reads `repeated`.
create function enqueue_turn(
  tree_key bigint, owner text, response_id text, parent_id text, conversation_id text, model text, body bytea, request bytea,
  request_hash bytea, created_at timestamptz, queue_limit int)
returns text
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  known response;
  waiting int;
begin
  select * into known
  from response r
  where r.tree_key = enqueue_turn.tree_key and r.response_id = enqueue_turn.response_id and r.owner = enqueue_turn.owner;
  if found then
    return case
      when known.background and (known.round > 0 or known.content_hash = enqueue_turn.request_hash) then 'repeated'
      else 'conflict'
    end;
  end if;

  perform pg_advisory_xact_lock(hashtextextended(enqueue_turn.owner, 8385557893012));   -- an owner's turns are counted one at a time
  select count(*) into waiting
  from work w
  where w.owner = enqueue_turn.owner
    and not exists (select from lease l where l.subject = w.response_id and l.expires_at > clock_timestamp());
  if waiting >= enqueue_turn.queue_limit then
    return 'full';
  end if;

  insert into tree as t (tree_key, owner, next_seq)
  values (enqueue_turn.tree_key, enqueue_turn.owner, 1)
  on conflict (tree_key) do update
    set owner = t.owner
    where t.owner = excluded.owner;
  if not found then
    return 'not_found';
  end if;

  insert into response (tree_key, response_id, owner, round, fencing_token, content_hash, parent_id, conversation_id, status, model,
                        checkpoint, input, output, open_calls, body, carried, created_at, background)
  values (enqueue_turn.tree_key, enqueue_turn.response_id, enqueue_turn.owner, 0, 0, enqueue_turn.request_hash, enqueue_turn.parent_id,
          enqueue_turn.conversation_id, 'queued', enqueue_turn.model, '{}', '{}', '{}', '{}', enqueue_turn.body, '',
          enqueue_turn.created_at, true);
  insert into work (response_id, tree_key, owner, conversation_id, request)
  values (enqueue_turn.response_id, enqueue_turn.tree_key, enqueue_turn.owner,
          coalesce((select c.conversation_id
                    from conversation c
                    where c.tree_key = enqueue_turn.tree_key and c.conversation_id = enqueue_turn.conversation_id
                      and c.owner = enqueue_turn.owner), ''),
          enqueue_turn.request);
  insert into event_log (tree_key, response_id, owner)
  values (enqueue_turn.tree_key, enqueue_turn.response_id, enqueue_turn.owner);
  return 'queued';
end
$$;

-- Takes the oldest turn that nobody runs, with a lease of its own; no row when there is none. A turn in a conversation waits until the
-- conversation's lease is free, and takes it too, under the same token. Locks are taken in the order work, lease of the conversation, lease of the
-- response, then as in a commit.
create function take_turn(holder text, lifetime interval)
returns table (tree_key bigint, owner text, response_id text, request bytea, attempt int, cancel_requested boolean, token bigint,
               round int, status text, body bytea)
language plpgsql
as $$
#variable_conflict use_column
declare
  found_work work;
  last_token bigint;
  busy_until timestamptz;
  new_token bigint;
begin
  loop
    select w.* into found_work
    from work w
    where not exists (select from lease l where l.subject = w.response_id and l.expires_at > clock_timestamp())
      and not exists (select from lease l where l.subject = w.conversation_id and l.expires_at > clock_timestamp())
    order by w.queued_at
    limit 1
    for update of w skip locked;
    if not found then
      return;
    end if;

    -- what the search saw may be older than the wait for a lock: the leases themselves decide
    select l.token, l.expires_at into last_token, busy_until from lease l where l.subject = found_work.conversation_id for update;
    continue when busy_until > clock_timestamp();
    insert into lease as l (subject, holder, token, expires_at)
    values (found_work.response_id, take_turn.holder, coalesce(last_token, 0) + 1, clock_timestamp() + take_turn.lifetime)
    on conflict (subject) do update
      set holder = excluded.holder, token = greatest(l.token + 1, excluded.token), expires_at = excluded.expires_at
      where l.expires_at <= clock_timestamp()
    returning l.token into new_token;
    continue when not found;
    update lease l
    set holder = found_work.response_id, token = new_token, expires_at = clock_timestamp() + take_turn.lifetime
    where l.subject = found_work.conversation_id;

    update work w set attempts = w.attempts + 1 where w.response_id = found_work.response_id;
    return query
      select found_work.tree_key, found_work.owner, found_work.response_id, found_work.request, found_work.attempts + 1,
             found_work.cancel_requested, new_token, r.round, r.status, r.body
      from response r
      where r.tree_key = found_work.tree_key and r.response_id = found_work.response_id and r.owner = found_work.owner;
    return;
  end loop;
end
$$;

-- Prolongs the leases of a turn; no row when they have passed on or the turn has ended.
create function keep_turn(tree_key bigint, owner text, response_id text, token bigint, lifetime interval)
returns table (cancel_requested boolean)
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  kept work;
begin
  select w.* into kept
  from work w
  where w.response_id = keep_turn.response_id and w.tree_key = keep_turn.tree_key and w.owner = keep_turn.owner;
  if not found then
    return;
  end if;
  update lease l
  set expires_at = clock_timestamp() + keep_turn.lifetime
  where l.subject = kept.conversation_id and l.token = keep_turn.token and l.holder = kept.response_id;
  update lease l
  set expires_at = clock_timestamp() + keep_turn.lifetime
  where l.subject = kept.response_id and l.token = keep_turn.token and l.holder <> '';
  if found then
    return query select kept.cancel_requested;
  end if;
end
$$;

-- Gives a turn back: it waits again, and this attempt does not count. Nothing happens when its leases have passed on.
create function return_turn(tree_key bigint, owner text, response_id text, token bigint)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  returned work;
begin
  select w.* into returned
  from work w
  where w.response_id = return_turn.response_id and w.tree_key = return_turn.tree_key and w.owner = return_turn.owner
  for update;
  if not found then
    return;
  end if;
  update lease l
  set holder = '', expires_at = '-infinity'
  where l.subject = returned.conversation_id and l.token = return_turn.token and l.holder = returned.response_id;
  update lease l
  set holder = '', expires_at = '-infinity'
  where l.subject = returned.response_id and l.token = return_turn.token and l.holder <> '';
  if found then
    update work w set attempts = w.attempts - 1 where w.response_id = returned.response_id;
  end if;
end
$$;

-- Ends a turn that nobody runs, or that the caller has just taken. The caller has locked its work, and `body` says what `status` says.
create function end_turn(tree_key bigint, owner text, response_id text, status text, body bytea, expires_at timestamptz)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  ended work;
begin
  delete from work w
  where w.response_id = end_turn.response_id and w.tree_key = end_turn.tree_key and w.owner = end_turn.owner
  returning w.* into ended;
  update lease l
  set holder = '', expires_at = '-infinity'
  where l.subject = ended.conversation_id and l.holder = ended.response_id;
  delete from lease l where l.subject = ended.response_id;
  update response r
  set status = end_turn.status, body = end_turn.body, resume_state = '', expires_at = end_turn.expires_at
  where r.tree_key = end_turn.tree_key and r.response_id = end_turn.response_id and r.owner = end_turn.owner
    and r.status in ('queued', 'in_progress');
  update event_log e
  set closed = true, ended_at = clock_timestamp()
  where e.tree_key = end_turn.tree_key and e.response_id = end_turn.response_id and e.owner = end_turn.owner;
end
$$;

-- Appends events to a log; says whether the caller may. Events that are there already are passed over. Whoever has ended the turn may still append
-- its last events, though the lease is gone with the turn.
create function append_events(
  tree_key bigint, owner text, response_id text, token bigint, first_number bigint, types text[], events bytea[], ended boolean)
returns boolean
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  log event_log;
  known bigint;
begin
  perform from lease l
  where l.subject = append_events.response_id and l.token = append_events.token and l.holder <> ''
  for share;
  if not found then
    perform from response r
    where r.tree_key = append_events.tree_key and r.response_id = append_events.response_id and r.owner = append_events.owner
      and r.background and r.fencing_token = append_events.token and r.status not in ('queued', 'in_progress');
    if not found then
      return false;
    end if;
  end if;

  select e.* into log
  from event_log e
  where e.tree_key = append_events.tree_key and e.response_id = append_events.response_id and e.owner = append_events.owner
  for update;
  if not found then
    return false;
  end if;
  if log.closed then
    return true;
  end if;

  known := greatest(log.last_number + 1 - append_events.first_number, 0);
  if known < cardinality(append_events.events) then
    insert into event_batch (tree_key, response_id, first_number, last_number, owner, types, events, bytes)
    select log.tree_key, log.response_id, append_events.first_number + known,
           append_events.first_number + cardinality(append_events.events) - 1, log.owner,
           append_events.types[known + 1:], append_events.events[known + 1:],
           (select sum(octet_length(event)) from unnest(append_events.events[known + 1:]) as event);
  end if;
  update event_log e
  set last_number = greatest(e.last_number, append_events.first_number + cardinality(append_events.events) - 1),
      closed = append_events.ended
  where e.tree_key = log.tree_key and e.response_id = log.response_id and e.owner = log.owner;
  return true;
end
$$;
