-- Lists of ranges travel as two arrays, of first numbers and of ends: a client library reads and writes those without parsing text.

create function ranges_of(firsts int[], ends int[]) returns int4range[]
language sql immutable parallel safe
return coalesce((select array_agg(int4range(f, e) order by n) from unnest(firsts, ends) with ordinality as u(f, e, n)), '{}');

create function firsts_of(ranges int4range[]) returns int[]
language sql immutable parallel safe
return coalesce((select array_agg(lower(r) order by n) from unnest(ranges) with ordinality as u(r, n)), '{}');

create function ends_of(ranges int4range[]) returns int[]
language sql immutable parallel safe
return coalesce((select array_agg(upper(r) order by n) from unnest(ranges) with ordinality as u(r, n)), '{}');

-- A list of ranges with one more at its end: joined to the last one where they touch, unchanged when the new one is empty.
create function range_appended(ranges int4range[], span int4range) returns int4range[]
language sql immutable parallel safe
return case
  when isempty(span) then ranges
  when upper(ranges[cardinality(ranges)]) = lower(span)
    then ranges[:cardinality(ranges) - 1] || int4range(lower(ranges[cardinality(ranges)]), upper(span))
  else ranges || span
end;

-- Saves one turn in one statement. The outcome is
--   stored      done now
--   repeated    this very turn was stored before; nothing is written
--   conflict    the response id is stored with other content; nothing is written
--   stale       the lease has passed to another holder and the caller must hold it; nothing is written
--   not_found   the tree is another owner's, or the tree or the items of the base are gone; nothing is written
--
-- All parts see one snapshot, which may be older than the wait for the tree's row. Numbers and heads are right all the same, because an UPDATE
-- works on the newest row; but of two equal commits at once the later one ends in a unique violation on response_pkey, with nothing
-- written. The caller runs it again, once, and then reads `repeated` or `conflict`.
--
-- `base` comes from the caller, who loaded it: the parent's row is not read, it may be gone by now. Locks are taken in the order lease, tree,
-- conversation, as everywhere.
create function commit_turn(
  tree_key bigint, owner text, response_id text, round int, fencing_token bigint, must_hold boolean, content_hash bytea,
  parent_id text, conversation_id text,
  base_firsts int[], base_ends int[],
  base_tree_key bigint,                       -- the tree that the base counts in; its items are copied when that is another one
  item_ids text[], types text[], origins text[], bodies bytea[], prompts bytea[], item_tokens int[],
  inputs int,                                 -- how many of the items are input; the rest is output
  status text, model text, open_calls text[], body bytea, carried bytea,
  created_at timestamptz, completed_at timestamptz, expires_at timestamptz)
returns table (outcome text, checkpoint_firsts int[], checkpoint_ends int[])
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return query
  with turn as materialized (
    select commit_turn.tree_key, commit_turn.owner, commit_turn.response_id, commit_turn.round, commit_turn.fencing_token,
           commit_turn.must_hold, commit_turn.content_hash, commit_turn.parent_id, commit_turn.conversation_id,
           commit_turn.base_tree_key, commit_turn.inputs,
           ranges_of(commit_turn.base_firsts, commit_turn.base_ends) as base,
           coalesce((select sum(e - f) from unnest(commit_turn.base_firsts, commit_turn.base_ends) as b(f, e)), 0)::int as base_items,
           coalesce((select max(e) from unnest(commit_turn.base_ends) as b(e)), 0) as base_end,
           cardinality(commit_turn.item_ids) as own_items,
           commit_turn.base_tree_key <> commit_turn.tree_key as copies
  ),
  known as materialized (
    select (r.round, r.fencing_token, r.content_hash) = (turn.round, turn.fencing_token, turn.content_hash) as same, r.checkpoint
    from turn join response r on (r.tree_key, r.response_id, r.owner) = (turn.tree_key, turn.response_id, turn.owner)
  ),
  holder as materialized (                    -- FOR SHARE: a take-over waits for this commit, or this commit sees the take-over
    select l.token = turn.fencing_token as current
    from turn join lease l on l.subject = coalesce(nullif(turn.conversation_id, ''), turn.response_id)
    where turn.must_hold
    for share of l
  ),
  copied as materialized (
    select row_number() over () as n, i.*
    from turn
    cross join unnest(turn.base) with ordinality as b(span, place)
    cross join lateral (
      select item.item_id, item.type, item.origin, item.body, item.prompt, item.tokens, item.response_id, item.created_at
      from item
      where item.tree_key = turn.base_tree_key and item.owner = turn.owner and item.seq >= lower(b.span) and item.seq < upper(b.span)
      order by item.seq offset 0) as i
    where turn.copies
  ),
  allowed as materialized (
    select turn.*, case when turn.copies then turn.base_items else 0 end as copies_items
    from turn
    where not exists (select from known)
      and (not turn.must_hold or coalesce((select current from holder), false))
      and (not turn.copies or (select count(*) from copied) = turn.base_items)
  ),
  moved as (                                  -- a continuation moves its tree and never makes one
    update tree t
    set next_seq = t.next_seq + a.own_items
    from allowed a
    where t.tree_key = a.tree_key and t.owner = a.owner
      and a.base_items > 0 and not a.copies
      and a.base_end <= t.next_seq            -- a base that names numbers not given out yet is not of this tree
    returning t.next_seq
  ),
  opened as (
    insert into tree as t (tree_key, owner, next_seq)
    select a.tree_key, a.owner, 1 + a.copies_items + a.own_items
    from allowed a
    where a.base_items = 0 or a.copies
    on conflict (tree_key) do update
      set next_seq = t.next_seq + excluded.next_seq - 1
      where t.owner = excluded.owner
    returning t.next_seq
  ),
  placed as materialized (                    -- the numbers: first the copies, then the turn's own items
    select a.*, g.next_seq - a.own_items - a.copies_items as first_copy, g.next_seq - a.own_items as first,
           case when a.copies then int4range(g.next_seq - a.own_items - a.copies_items, g.next_seq - a.own_items) else 'empty' end as copy,
           case when a.copies then '{}' else a.base end as kept
    from allowed a cross join (select next_seq from moved union all select next_seq from opened) g
  ),
  new_items as (
    insert into item (tree_key, seq, owner, item_id, type, origin, body, prompt, tokens, response_id)
    select p.tree_key, p.first + u.n - 1, p.owner, u.item_id, u.type, u.origin, u.body, u.prompt, u.tokens, p.response_id
    from placed p
    cross join unnest(commit_turn.item_ids, commit_turn.types, commit_turn.origins, commit_turn.bodies, commit_turn.prompts,
                      commit_turn.item_tokens)
      with ordinality as u(item_id, type, origin, body, prompt, tokens, n)
  ),
  new_copies as (
    insert into item (tree_key, seq, owner, item_id, type, origin, body, prompt, tokens, response_id, created_at)
    select p.tree_key, p.first_copy + c.n - 1, p.owner, c.item_id, c.type, c.origin, c.body, c.prompt, c.tokens, c.response_id, c.created_at
    from placed p cross join copied c
  ),
  new_response as (
    insert into response as r (tree_key, response_id, owner, round, fencing_token, content_hash, parent_id, conversation_id, status, model,
                               checkpoint, input, output, open_calls, body, carried, created_at, completed_at, expires_at)
    select p.tree_key, p.response_id, p.owner, p.round, p.fencing_token, p.content_hash, p.parent_id, p.conversation_id,
           commit_turn.status, commit_turn.model,
           range_appended(range_appended(p.kept, p.copy), int4range(p.first, p.first + p.own_items)),
           range_appended(range_appended(p.kept, p.copy), int4range(p.first, p.first + p.inputs)),
           range_appended('{}', int4range(p.first + p.inputs, p.first + p.own_items)),
           commit_turn.open_calls, commit_turn.body, commit_turn.carried, commit_turn.created_at, commit_turn.completed_at, commit_turn.expires_at
    from placed p
    returning r.checkpoint
  ),
  new_head as (                               -- a delta on the newest head, whatever the turn had loaded
    update conversation c
    set head = range_appended(c.head, int4range(p.first, p.first + p.own_items)), revision = c.revision + 1
    from placed p
    where c.tree_key = p.tree_key and c.conversation_id = p.conversation_id and c.owner = p.owner
  )
  select case
           when (select same from known) then 'repeated'
           when exists (select from known) then 'conflict'
           when turn.must_hold and not coalesce((select current from holder), false) then 'stale'
           when not exists (select from placed) then 'not_found'
           else 'stored'
         end,
         firsts_of(coalesce((select checkpoint from new_response), (select checkpoint from known))),
         ends_of(coalesce((select checkpoint from new_response), (select checkpoint from known)))
  from turn;
end
$$;
