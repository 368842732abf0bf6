-- Every statement that history runs, named and explained. Each that touches a tree's rows names the tree and the owner, so that what belongs to
-- another owner is not there. The schema stands in migrations/.

-- name: load_context
-- The context that a continuation of a response or of a conversation starts from (the id of the other one is empty), as one row per 32 neighbouring items at most; the head's columns stand on the first row only.
-- A lateral per range, and per 32 numbers of it, behind `offset 0`: without that fence the planner compares every range with every item. The prompts
-- are joined here because a row per item costs the reader twice the time, and no more of them because longer strings cost both sides more. `lengths` and `origins` come where the reader must take a row apart:
-- where an item belongs to one provider, or the row is large. A row that is past the limit by itself comes without its prompts; what the rows come
-- to together the reader counts, for a window over them would copy each once more.
select case when x.is_first is not false then r.status end as status,
       case when x.is_first is not false then r.model end as model,
       case when x.is_first is not false then r.parent_id end as parent_id,
       case when x.is_first is not false then r.open_calls end as open_calls,
       case when x.is_first is not false then firsts_of(r.checkpoint) end as firsts,
       case when x.is_first is not false then ends_of(r.checkpoint) end as ends,
       case when x.is_first is not false then t.next_seq end as next_seq,
       case when x.is_first is not false then r.carried end as carried,
       case when x.is_first is not false then r.resume_state end as resume_state,
       x.items, x.tokens, x.bytes, case when x.bytes <= %(limit)s then x.prompts end as prompts, x.lengths, x.origins
from (
  select r.status, r.model, r.parent_id, r.open_calls, r.checkpoint, r.carried, r.resume_state
  from response r
  where r.tree_key = %(tree_key)s::bigint and r.response_id = %(response_id)s and r.owner = %(owner)s
    and not r.unlisted and (r.expires_at is null or r.expires_at > now())
  union all
  select 'completed', '', '', c.open_calls, c.head, c.carried, ''::bytea
  from conversation c
  where c.tree_key = %(tree_key)s::bigint and c.conversation_id = %(conversation_id)s and c.owner = %(owner)s) as r
join tree t on t.tree_key = %(tree_key)s::bigint and t.owner = %(owner)s
left join lateral (
  select c.*, g.place = 1 and s.first = lower(g.span) as is_first
  from unnest(r.checkpoint) with ordinality as g(span, place)
  cross join generate_series(lower(g.span), upper(g.span) - 1, 32) as s(first)
  cross join lateral (
    select string_agg(nullif(i.prompt, ''), ',' order by i.seq) as prompts,
           count(*) as items, coalesce(sum(i.tokens), 0) as tokens, coalesce(sum(octet_length(i.prompt)), 0) as bytes,
           case when bool_or(i.origin <> '') or sum(octet_length(i.prompt)) > %(large)s
             then array_agg(octet_length(i.prompt) order by i.seq) end as lengths,
           case when bool_or(i.origin <> '') or sum(octet_length(i.prompt)) > %(large)s
             then array_agg(i.origin order by i.seq) end as origins
    from (
      select item.seq, coalesce(item.prompt, item.body) as prompt, item.origin, item.tokens
      from item
      where item.tree_key = %(tree_key)s::bigint and item.owner = %(owner)s
        and item.seq >= s.first and item.seq < least(upper(g.span), s.first + 32)
      order by item.seq offset 0) as i) as c) as x on true

-- name: commit_turn
-- Saves a turn; all of it stands in the function, which keeps its plan for the session without a prepared statement of ours.
select outcome, checkpoint_firsts, checkpoint_ends
from commit_turn(
  %(tree_key)s::bigint, %(owner)s, %(response_id)s, %(round)s::int, %(fencing_token)s::bigint, %(must_hold)s, %(content_hash)s::bytea,
  %(parent_id)s, %(conversation_id)s, %(base_firsts)s::int[], %(base_ends)s::int[], %(base_tree_key)s::bigint,
  %(item_ids)s::text[], %(types)s::text[], %(origins)s::text[], %(bodies)s::bytea[], %(prompts)s::bytea[], %(item_tokens)s::int[],
  %(left_out)s::boolean[], %(inputs)s::int, %(status)s, %(model)s, %(open_calls)s::text[], %(closed_calls)s::text[], %(body)s::bytea,
  %(carried)s::bytea, %(resume_state)s::bytea, %(unlisted)s, %(removed_firsts)s::int[], %(removed_ends)s::int[],
  to_timestamp(%(created_at)s), to_timestamp(%(completed_at)s), now() + make_interval(secs => %(keep_seconds)s))

-- name: response
-- One response without its items.
select status, body, firsts_of(input) as input_firsts, ends_of(input) as input_ends, firsts_of(output) as output_firsts, ends_of(output) as output_ends
from response
where tree_key = %(tree_key)s::bigint and response_id = %(response_id)s and owner = %(owner)s
  and not unlisted and (expires_at is null or expires_at > now())

-- name: items
-- The items of a list of ranges as the API shows them, in the order of the list. Those with an empty body are not for the API, but they count.
select i.item_id, i.type, i.body
from unnest(%(firsts)s::int[], %(ends)s::int[]) with ordinality as g(first, until, place)
cross join lateral (
  select item.item_id, item.type, item.body
  from item
  where item.tree_key = %(tree_key)s::bigint and item.owner = %(owner)s and item.seq >= g.first and item.seq < g.until
  order by item.seq offset 0) as i

-- name: find_items
-- The newest item with each of some ids, of those that the API shows; past the limit the bytes stay here, and the reader sees it at `bytes_so_far`.
select x.item_id, x.type, case when x.bytes_so_far <= %(limit)s then x.body end as body, x.origin,
       case when x.bytes_so_far <= %(limit)s then x.prompt end as prompt, x.tokens, x.seq, x.bytes_so_far
from (
  select i.*, (sum(octet_length(i.body) + coalesce(octet_length(i.prompt), 0)) over (rows unbounded preceding))::bigint as bytes_so_far
  from unnest(%(tree_keys)s::bigint[], %(item_ids)s::text[]) as wanted(tree_key, item_id)
  cross join lateral (
    select item.item_id, item.type, item.body, item.origin, item.prompt, item.tokens, item.seq
    from item
    where item.tree_key = wanted.tree_key and item.item_id = wanted.item_id and item.owner = %(owner)s and item.body <> ''
    order by item.seq desc
    limit 1) as i) as x

-- name: item_numbers
-- The numbers of the items with one id, for the place where a page starts; ids are not unique.
select seq
from item
where tree_key = %(tree_key)s::bigint and owner = %(owner)s and item_id = %(item_id)s

-- name: delete_response
-- Deletes a response, what is left of its turn in the background, and marks tree and event log for the sweep. Each part waits for the one before,
-- so that locks are taken in the order of a commit: another order could lock both for ever.
with wanted as materialized (
  select r.response_id
  from response r
  where r.tree_key = %(tree_key)s::bigint and r.response_id = %(response_id)s and r.owner = %(owner)s
    and not r.unlisted and (r.expires_at is null or r.expires_at > now())),
unqueued as (
  delete from work w
  using wanted
  where w.response_id = wanted.response_id and w.owner = %(owner)s
  returning w.response_id, w.conversation_id),
freed as (
  update lease l
  set holder = '', expires_at = '-infinity'
  from unqueued
  where l.subject = unqueued.conversation_id and l.holder = unqueued.response_id
  returning l.subject),
unleased as (
  delete from lease l
  where l.subject in (select unqueued.response_id from unqueued) and (select count(*) from freed) >= 0
  returning l.subject),
marked as (
  update tree t
  set dirty_at = clock_timestamp()
  where t.tree_key = %(tree_key)s::bigint and t.owner = %(owner)s
    and exists (select from wanted) and (select count(*) from unleased) >= 0
  returning t.tree_key, t.owner),
unlogged as (
  update event_log e
  set closed = true, ended_at = '-infinity'
  from marked
  where e.tree_key = marked.tree_key and e.response_id = %(response_id)s and e.owner = marked.owner)
delete from response r
using marked
where r.tree_key = marked.tree_key and r.owner = marked.owner and r.response_id = %(response_id)s
returning r.response_id

-- name: create_conversation
-- Makes a conversation; all of it stands in the function.
select create_conversation(
  %(tree_key)s::bigint, %(owner)s, %(conversation_id)s, %(metadata)s::bytea, %(open_calls)s::text[], to_timestamp(%(created_at)s),
  %(item_ids)s::text[], %(types)s::text[], %(origins)s::text[], %(bodies)s::bytea[], %(prompts)s::bytea[], %(item_tokens)s::int[],
  %(left_out)s::boolean[])

-- name: conversation
-- One conversation without its items.
select extract(epoch from created_at)::bigint as created_at, metadata, revision,
       firsts_of(listed) as listed_firsts, ends_of(listed) as listed_ends, firsts_of(head) as head_firsts, ends_of(head) as head_ends
from conversation
where tree_key = %(tree_key)s::bigint and conversation_id = %(conversation_id)s and owner = %(owner)s

-- name: update_conversation
-- Replaces a conversation's metadata.
update conversation
set metadata = %(metadata)s::bytea
where tree_key = %(tree_key)s::bigint and conversation_id = %(conversation_id)s and owner = %(owner)s
returning extract(epoch from created_at)::bigint as created_at, metadata

-- name: delete_conversation
-- Deletes a conversation with its lease and marks its tree for the sweep; in the order of a commit's locks, like delete_response.
with unleased as (
  delete from lease l
  using conversation c
  where c.tree_key = %(tree_key)s::bigint and c.conversation_id = %(conversation_id)s and c.owner = %(owner)s and l.subject = c.conversation_id
  returning l.subject),
marked as (
  update tree t
  set dirty_at = clock_timestamp()
  where t.tree_key = %(tree_key)s::bigint and t.owner = %(owner)s
    and exists (
      select from conversation c
      where c.tree_key = %(tree_key)s::bigint and c.conversation_id = %(conversation_id)s and c.owner = %(owner)s)
    and (select count(*) from unleased) >= 0
  returning t.tree_key, t.owner)
delete from conversation c
using marked
where c.tree_key = marked.tree_key and c.owner = marked.owner and c.conversation_id = %(conversation_id)s
returning c.conversation_id

-- name: add_conversation_items
-- Appends items to a conversation; all of it stands in the function.
select add_conversation_items(
  %(tree_key)s::bigint, %(owner)s, %(conversation_id)s, %(opened_calls)s::text[], %(closed_calls)s::text[], %(tree_max_items)s::int,
  %(item_ids)s::text[], %(types)s::text[], %(origins)s::text[], %(bodies)s::bytea[], %(prompts)s::bytea[], %(item_tokens)s::int[],
  %(left_out)s::boolean[])

-- name: items_by_id
-- The items with one id, newest first, with what the model sees of them.
select seq, item_id, type, body, coalesce(prompt, body) as prompt
from item
where tree_key = %(tree_key)s::bigint and owner = %(owner)s and item_id = %(item_id)s
order by seq desc

-- name: halves
-- The calls, or the outputs, of a list of ranges that may have a call_id: its bytes stand in them. Whether they do have it says their JSON.
select i.seq, i.prompt
from unnest(%(firsts)s::int[], %(ends)s::int[]) with ordinality as g(first, until, place)
cross join lateral (
  select item.seq, coalesce(nullif(item.body, ''), item.prompt) as prompt
  from item
  where item.tree_key = %(tree_key)s::bigint and item.owner = %(owner)s and item.seq >= g.first and item.seq < g.until
    and item.type like %(types)s
    and (position(%(spelling)s::bytea in coalesce(nullif(item.body, ''), item.prompt)) > 0
         or position(%(other_spelling)s::bytea in coalesce(nullif(item.body, ''), item.prompt)) > 0)
  order by item.seq offset 0) as i

-- name: remove_conversation_items
-- Takes items out of a conversation; all of it stands in the function.
select remove_conversation_items(
  %(tree_key)s::bigint, %(owner)s, %(conversation_id)s, %(revision)s::int, %(listed_removed)s::int[], %(head_removed)s::int[],
  %(closed_calls)s::text[])

-- name: acquire_lease
-- Takes a conversation's lease if it is free, or held by this very holder, whose first answer was lost.
update lease l
set holder = %(holder)s, token = l.token + 1, expires_at = clock_timestamp() + make_interval(secs => %(lifetime)s)
from conversation c
where c.tree_key = %(tree_key)s::bigint and c.conversation_id = %(conversation_id)s and c.owner = %(owner)s
  and l.subject = c.conversation_id
  and (l.expires_at <= clock_timestamp() or l.holder = %(holder)s)
returning l.token

-- name: lease_left
-- How many seconds a conversation's lease is still held; no row without the conversation.
select case when isfinite(l.expires_at) then extract(epoch from l.expires_at - clock_timestamp())::float8 else 0 end as seconds
from conversation c
left join lease l on l.subject = c.conversation_id
where c.tree_key = %(tree_key)s::bigint and c.conversation_id = %(conversation_id)s and c.owner = %(owner)s

-- name: renew_lease
-- Prolongs a lease that has not passed on and was not given back.
update lease l
set expires_at = clock_timestamp() + make_interval(secs => %(lifetime)s)
from conversation c
where c.tree_key = %(tree_key)s::bigint and c.conversation_id = %(conversation_id)s and c.owner = %(owner)s
  and l.subject = c.conversation_id and l.token = %(token)s::bigint and l.holder <> ''
returning l.token

-- name: release_lease
-- Gives a lease back; the row keeps the token, so that the next one is higher.
update lease l
set holder = '', expires_at = '-infinity'
from conversation c
where c.tree_key = %(tree_key)s::bigint and c.conversation_id = %(conversation_id)s and c.owner = %(owner)s
  and l.subject = c.conversation_id and l.token = %(token)s::bigint and l.holder <> ''
returning l.token

-- name: claim_call
-- Claims a call, or says what an earlier claim of it has come to: the updates change nothing but lock the newest row and give it back. A tree that is
-- not there yet is made, and marked for the sweep in case that its first turn is never saved.
with place as (
  insert into tree as t (tree_key, owner, next_seq, dirty_at)
  values (%(tree_key)s::bigint, %(owner)s, 1, clock_timestamp())
  on conflict (tree_key) do update
    set owner = t.owner
    where t.owner = excluded.owner
  returning t.tree_key, t.owner),
claimed as (
  insert into claim as c (tree_key, claim_id, owner, response_id)
  select place.tree_key, %(claim_id)s, place.owner, %(response_id)s from place
  on conflict (tree_key, claim_id) do update
    set owner = c.owner
  returning c.response_id, c.outcome, c.settled_at)
select response_id = %(response_id)s and settled_at is null as granted, settled_at is not null as settled, coalesce(outcome, '') as outcome
from claimed

-- name: settle_claim
-- Records what became of a call; the first outcome stays.
update claim
set outcome = coalesce(outcome, %(outcome)s::bytea), settled_at = coalesce(settled_at, now())
where tree_key = %(tree_key)s::bigint and claim_id = %(claim_id)s and owner = %(owner)s and response_id = %(response_id)s
returning claim_id

-- name: claim_key
-- Remembers what an idempotency key stands for, or says what it stands for already; a key whose time is over is free.
insert into idempotency as i (owner, key, request_hash, response_id, expires_at)
values (%(owner)s, %(key)s, %(request_hash)s::bytea, %(response_id)s, now() + make_interval(secs => %(seconds)s))
on conflict (owner, key) do update
  set request_hash = case when i.expires_at <= now() then excluded.request_hash else i.request_hash end,
      response_id = case when i.expires_at <= now() then excluded.response_id else i.response_id end,
      expires_at = case when i.expires_at <= now() then excluded.expires_at else i.expires_at end
returning response_id, request_hash

-- name: expire_keys
-- Forgets some of the idempotency keys whose time is over.
with expired as materialized (
  select owner, key from idempotency where expires_at <= now() order by expires_at limit %(limit)s for update skip locked)
delete from idempotency i
using expired
where i.owner = expired.owner and i.key = expired.key
returning i.key

-- name: expire_claims
-- Forgets some of the claims of rounds whose turn has ended; one that runs on for a while after its end may still settle them.
with expired as materialized (
  select c.tree_key, c.claim_id from claim c
  where c.claim_id like 'call\_%%' and c.claimed_at <= now() - make_interval(secs => %(wait_seconds)s)
    and not exists (select from work w where w.response_id = split_part(c.response_id, '/', 1))
  order by c.claimed_at limit %(limit)s for update skip locked)
delete from claim c
using expired
where c.tree_key = expired.tree_key and c.claim_id = expired.claim_id
returning c.claim_id

-- name: enqueue_turn
-- Queues a turn; all of it stands in the function.
select enqueue_turn(
  %(tree_key)s::bigint, %(owner)s, %(response_id)s, %(parent_id)s, %(conversation_id)s, %(model)s, %(body)s::bytea, %(request)s::bytea,
  %(request_hash)s::bytea, to_timestamp(%(created_at)s), %(queue_limit)s::int)

-- name: take_turn
-- Takes the oldest turn that nobody runs; all of it stands in the function.
select tree_key, owner, response_id, request, attempt, cancel_requested, token, round, status, body
from take_turn(%(holder)s, make_interval(secs => %(lifetime)s))

-- name: start_turn
-- A response whose turn was taken for the first time is in progress. Its work is locked.
update response
set status = 'in_progress', body = %(body)s::bytea
where tree_key = %(tree_key)s::bigint and response_id = %(response_id)s and owner = %(owner)s and status = 'queued'

-- name: keep_turn
-- Prolongs the leases of a turn; all of it stands in the function.
select cancel_requested
from keep_turn(%(tree_key)s::bigint, %(owner)s, %(response_id)s, %(token)s::bigint, make_interval(secs => %(lifetime)s))

-- name: return_turn
-- Gives a turn back; all of it stands in the function.
select return_turn(%(tree_key)s::bigint, %(owner)s, %(response_id)s, %(token)s::bigint)

-- name: end_turn
-- Ends a turn from outside; all of it stands in the function.
select end_turn(
  %(tree_key)s::bigint, %(owner)s, %(response_id)s, %(status)s, %(body)s::bytea, now() + make_interval(secs => %(keep_seconds)s))

-- name: lock_work
-- The turn of a response, locked, and whether somebody runs it; no row when it has ended. Runs before anything else of its transaction, so that the
-- next statement sees how it ended.
select exists (select from lease l where l.subject = w.response_id and l.expires_at > clock_timestamp()) as runs
from work w
where w.response_id = %(response_id)s and w.tree_key = %(tree_key)s::bigint and w.owner = %(owner)s
for update of w

-- name: request_cancel
-- Asks whoever runs a turn to cancel it. Its work is locked.
update work
set cancel_requested = true
where response_id = %(response_id)s and tree_key = %(tree_key)s::bigint and owner = %(owner)s

-- name: response_to_cancel
-- What a cancellation must know of a response.
select background, body
from response
where tree_key = %(tree_key)s::bigint and response_id = %(response_id)s and owner = %(owner)s
  and not unlisted and (expires_at is null or expires_at > now())

-- name: append_events
-- Appends events to a log, if the caller may; all of it stands in the function.
select append_events(
  %(tree_key)s::bigint, %(owner)s, %(response_id)s, %(token)s::bigint, %(first_number)s::bigint, %(types)s::text[], %(events)s::bytea[],
  %(ended)s)

-- name: events_behind
-- The next batches of a log behind a number, at most 17 and as many bytes as `limit` says, and how the log stands; one row without a batch when there is none yet. The
-- reading starts at the batch that the number stands in, so that a viewer at the end of a long log does not read it all. `is_over` once the
-- turn has ended so long ago that no last event will come.
select l.response_id is not null and (l.ended_at is null or l.ended_at > now() - make_interval(secs => %(keep_seconds)s)) as is_kept,
       coalesce(l.closed, true) as closed,
       coalesce(l.ended_at <= now() - make_interval(secs => %(last_event_seconds)s), false) as is_over,
       l.ended_at is not null as turn_ended, coalesce(l.last_number, -1) as last_number, e.first_number, e.types, e.events
from response r
left join event_log l on l.tree_key = r.tree_key and l.response_id = r.response_id and l.owner = r.owner
left join lateral (
  select b.first_number, b.types, b.events, sum(b.bytes) over (order by b.first_number) - b.bytes as bytes_before
  from (
    select e.first_number, e.last_number, e.types, e.events, e.bytes
    from event_batch e
    where e.tree_key = %(tree_key)s::bigint and e.response_id = %(response_id)s and e.owner = %(owner)s
      and e.first_number >= coalesce((
        select max(x.first_number)
        from event_batch x
        where x.tree_key = %(tree_key)s::bigint and x.response_id = %(response_id)s and x.owner = %(owner)s
          and x.first_number <= %(after)s::bigint), 0)
    order by e.first_number
    limit 17) as b
  where b.last_number > %(after)s::bigint) as e on e.bytes_before < %(limit)s
where r.tree_key = %(tree_key)s::bigint and r.response_id = %(response_id)s and r.owner = %(owner)s
  and not r.unlisted and (r.expires_at is null or r.expires_at > now())
order by e.first_number

-- name: sweep_events
-- Deletes some of the events of one log whose time is over, and the log itself with the last of them; a row says that there was such a log.
with over as materialized (
  select tree_key, response_id, owner
  from event_log
  where ended_at <= now() - make_interval(secs => %(keep_seconds)s)
  order by ended_at
  limit 1
  for update skip locked),
chosen as materialized (
  select b.tree_key, b.response_id, b.first_number
  from over
  join event_batch b on b.tree_key = over.tree_key and b.response_id = over.response_id and b.owner = over.owner
  order by b.first_number
  limit %(limit)s),
deleted as (
  delete from event_batch b
  using chosen
  where b.tree_key = chosen.tree_key and b.response_id = chosen.response_id and b.first_number = chosen.first_number),
dropped as (
  delete from event_log l
  using over
  where l.tree_key = over.tree_key and l.response_id = over.response_id and (select count(*) from chosen) < %(limit)s)
select response_id from over

-- name: listen
-- Hears which responses have new events. On a connection of its own that no pooler shares.
listen turnkeep_events

-- name: notify
-- Says which responses have new events, one message for many of them. Never in the transaction that stores the events: commits with a message to
-- send wait for one another.
select pg_notify('turnkeep_events', message) from unnest(%(messages)s::text[]) as message

-- name: expire_responses
-- Deletes some of the responses whose time is over; trees that are busy right now wait for the next time.
with expired as materialized (
  select tree_key, response_id, owner from response where expires_at <= now() order by expires_at limit %(limit)s),
locked as materialized (
  select t.tree_key, t.owner
  from tree t
  where t.tree_key in (select tree_key from expired)
  order by t.tree_key
  for update skip locked),
marked as (
  update tree t
  set dirty_at = clock_timestamp()
  from locked
  where t.tree_key = locked.tree_key and t.owner = locked.owner
  returning t.tree_key, t.owner)
delete from response r
using expired, marked
where r.tree_key = marked.tree_key and r.owner = marked.owner
  and expired.tree_key = r.tree_key and expired.response_id = r.response_id
returning r.response_id

-- name: lock_dirty_tree
-- Takes the tree that has waited longest for its sweep, unless another process has it. No turn that was loaded before the last deletion can still
-- run after `wait_seconds`.
select tree_key, owner
from tree
where dirty_at <= now() - make_interval(secs => %(wait_seconds)s)
order by dirty_at
limit 1
for update skip locked

-- name: sweep_items
-- Deletes some of the items that nothing in the tree names any more. Runs behind lock_dirty_tree, in the same transaction but as a statement of its
-- own: its snapshot must be younger than the lock, or it would miss what a commit in between has stored.
with named as (
  select unnest(r.checkpoint || r.input || r.output) as span
  from response r
  where r.tree_key = %(tree_key)s::bigint and r.owner = %(owner)s
  union all
  select unnest(c.head || c.listed) from conversation c where c.tree_key = %(tree_key)s::bigint and c.owner = %(owner)s),
unnamed as (
  select unnest(
    int4multirange(int4range(1, (select t.next_seq from tree t where t.tree_key = %(tree_key)s::bigint and t.owner = %(owner)s)))
    - coalesce((select range_agg(span) from named), '{}')) as span),
chosen as (
  select i.seq
  from unnamed
  cross join lateral (
    select item.seq
    from item
    where item.tree_key = %(tree_key)s::bigint and item.owner = %(owner)s and item.seq >= lower(unnamed.span) and item.seq < upper(unnamed.span)
    order by item.seq
    limit %(limit)s) as i
  limit %(limit)s)
delete from item
using chosen
where item.tree_key = %(tree_key)s::bigint and item.owner = %(owner)s and item.seq = chosen.seq

-- name: clean_tree
-- A tree that is swept to the end is not dirty.
update tree set dirty_at = null where tree_key = %(tree_key)s::bigint and owner = %(owner)s

-- name: drop_empty_tree
-- A tree without a response and without a conversation is gone, with its claims.
with dropped as (
  delete from tree t
  where t.tree_key = %(tree_key)s::bigint and t.owner = %(owner)s
    and not exists (select from response r where r.tree_key = %(tree_key)s::bigint and r.owner = %(owner)s)
    and not exists (select from conversation c where c.tree_key = %(tree_key)s::bigint and c.owner = %(owner)s)
  returning t.tree_key, t.owner)
delete from claim
using dropped
where claim.tree_key = dropped.tree_key and claim.owner = dropped.owner

-- name: probe
-- Does the database answer?
select 1

-- name: bound_lock_waits
-- Until the transaction ends: whoever waits longer for a lock gives up.
select set_config('lock_timeout', %(milliseconds)s::text, true)

-- name: lock_schema
-- One process at a time brings the schema up to date; the lock ends with the transaction, so a pooler cannot keep it.
select pg_advisory_xact_lock(8385557893011)

-- name: make_migration_table
create table if not exists schema_migration (
  number int primary key, name text not null, checksum text not null, applied_at timestamptz not null default now())

-- name: applied_migrations
select number, checksum from schema_migration

-- name: record_migration
insert into schema_migration (number, name, checksum) values (%(number)s, %(name)s, %(checksum)s)
