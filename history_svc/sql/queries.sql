-- Every statement that history runs, named and explained. Each that touches a tree's rows names the tree and the owner, so that what belongs to
-- another owner is not there. The schema stands in migrations/.

-- name: load_context
-- The context that a continuation starts from, as one row per 128 neighbouring items at most; the head's columns stand on the first row only.
-- A lateral per range, and per 128 numbers of it, behind `offset 0`: without that fence the planner compares every range with every item. The prompts
-- are joined here because a row per item costs the reader twice the time. `lengths` and `origins` come where the reader must take a row apart:
-- where an item belongs to one provider, or the row is large. Past the limit the prompts stay here, and the reader sees it at `bytes_so_far`.
select case when x.row is null or x.row = 1 then r.status end as status,
       case when x.row is null or x.row = 1 then r.model end as model,
       case when x.row is null or x.row = 1 then r.parent_id end as parent_id,
       case when x.row is null or x.row = 1 then r.open_calls end as open_calls,
       case when x.row is null or x.row = 1 then firsts_of(r.checkpoint) end as firsts,
       case when x.row is null or x.row = 1 then ends_of(r.checkpoint) end as ends,
       case when x.row is null or x.row = 1 then t.next_seq end as next_seq,
       case when x.row is null or x.row = 1 then r.carried end as carried,
       x.items, x.tokens, x.bytes_so_far, case when x.bytes_so_far <= %(limit)s then x.prompts end as prompts, x.lengths, x.origins
from response r
join tree t on t.tree_key = r.tree_key and t.owner = r.owner
left join lateral (
  select c.*, row_number() over () as row, (sum(c.bytes) over (rows unbounded preceding))::bigint as bytes_so_far
  from unnest(r.checkpoint) with ordinality as g(span, place)
  cross join generate_series(lower(g.span), upper(g.span) - 1, 128) as s(first)
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
        and item.seq >= s.first and item.seq < least(upper(g.span), s.first + 128)
      order by item.seq offset 0) as i) as c) as x on true
where r.tree_key = %(tree_key)s::bigint and r.response_id = %(response_id)s and r.owner = %(owner)s
  and (r.expires_at is null or r.expires_at > now())

-- name: commit_turn
-- Saves a turn; all of it stands in the function, which keeps its plan for the session without a prepared statement of ours.
select outcome, checkpoint_firsts, checkpoint_ends
from commit_turn(
  %(tree_key)s::bigint, %(owner)s, %(response_id)s, %(round)s::int, %(fencing_token)s::bigint, %(must_hold)s, %(content_hash)s::bytea,
  %(parent_id)s, %(conversation_id)s, %(base_firsts)s::int[], %(base_ends)s::int[], %(base_tree_key)s::bigint,
  %(item_ids)s::text[], %(types)s::text[], %(origins)s::text[], %(bodies)s::bytea[], %(prompts)s::bytea[], %(item_tokens)s::int[],
  %(inputs)s::int, %(status)s, %(model)s, %(open_calls)s::text[], %(body)s::bytea, %(carried)s::bytea,
  to_timestamp(%(created_at)s), to_timestamp(%(completed_at)s), now() + make_interval(secs => %(keep_seconds)s))

-- name: response
-- One response without its items.
select status, body, firsts_of(input) as input_firsts, ends_of(input) as input_ends, firsts_of(output) as output_firsts, ends_of(output) as output_ends
from response
where tree_key = %(tree_key)s::bigint and response_id = %(response_id)s and owner = %(owner)s
  and (expires_at is null or expires_at > now())

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
       case when x.bytes_so_far <= %(limit)s then x.prompt end as prompt, x.tokens, x.bytes_so_far
from (
  select i.*, (sum(octet_length(i.body) + coalesce(octet_length(i.prompt), 0)) over (rows unbounded preceding))::bigint as bytes_so_far
  from unnest(%(tree_keys)s::bigint[], %(item_ids)s::text[]) as wanted(tree_key, item_id)
  cross join lateral (
    select item.item_id, item.type, item.body, item.origin, item.prompt, item.tokens
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
-- Deletes a response and marks its tree for the sweep. The tree's row comes first, as in a commit: the other order could lock both for ever.
with marked as (
  update tree t
  set dirty_at = clock_timestamp()
  where t.tree_key = %(tree_key)s::bigint and t.owner = %(owner)s
    and exists (
      select from response r
      where r.tree_key = %(tree_key)s::bigint and r.response_id = %(response_id)s and r.owner = %(owner)s
        and (r.expires_at is null or r.expires_at > now()))
  returning t.tree_key, t.owner)
delete from response r
using marked
where r.tree_key = marked.tree_key and r.owner = marked.owner and r.response_id = %(response_id)s
returning r.response_id

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
  select unnest(c.head) from conversation c where c.tree_key = %(tree_key)s::bigint and c.owner = %(owner)s),
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
