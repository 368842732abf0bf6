-- Conversations with all that their API shows, responses that are kept but not shown, and items that stand in no prompt.

alter table conversation
  add column metadata bytea not null default '{}',
  add column listed int4range[] not null default '{}',       -- what the API lists; `head` is what the next turn continues from
  add column open_calls text[] not null default '{}',        -- the calls in the head that have no output yet
  add column carried bytea not null default '',
  add column created_at timestamptz not null default now();

alter table response
  add column own int4range[] not null default '{}',          -- the items that the turn itself has saved
  add column closed_calls text[] not null default '{}',      -- the calls of its conversation that they close
  add column unlisted boolean not null default false;        -- kept so that a repeated save is known, and for nothing else

-- One list of ranges behind another; joined where they touch.
create function ranges_appended(ranges int4range[], more int4range[]) returns int4range[]
language sql immutable parallel safe
return case when cardinality(more) = 0 then ranges else range_appended(ranges, more[1]) || more[2:] end;

-- A list of ranges without some numbers, in the same order.
create function ranges_without(ranges int4range[], removed int4range[]) returns int4range[]
language sql immutable parallel safe
return coalesce((
  select array_agg(part order by n, lower(part))
  from unnest(ranges) with ordinality as u(span, n)
  cross join lateral unnest(int4multirange(u.span) - coalesce((select range_agg(r) from unnest(removed) as r), '{}')) as part), '{}');

-- A list of ranges reduced to some numbers, in the same order.
create function ranges_within(ranges int4range[], wanted int4range[]) returns int4range[]
language sql immutable parallel safe
return coalesce((
  select array_agg(part order by n, lower(part))
  from unnest(ranges) with ordinality as u(span, n)
  cross join lateral unnest(int4multirange(u.span) * coalesce((select range_agg(r) from unnest(wanted) as r), '{}')) as part), '{}');

-- The ranges of new items that are not left out; the first of the items has the number `first`.
create function ranges_of_items(first int, left_out boolean[]) returns int4range[]
language sql immutable parallel safe
return coalesce((
  select array_agg(int4range(island_first, island_last + 1) order by island_first)
  from (
    select min(first + n - 1)::int as island_first, max(first + n - 1)::int as island_last
    from (
      select n, n - row_number() over (order by n) as island
      from unnest(left_out) with ordinality as u(is_out, n)
      where not is_out) as kept
    group by island) as islands), '{}');

-- The open calls after some were closed and others opened, each once.
create function calls_after(open text[], closed text[], opened text[]) returns text[]
language sql immutable parallel safe
return coalesce((
  select array_agg(call order by place)
  from (
    select call, min(n) as place
    from unnest(open || opened) with ordinality as u(call, n)
    where n > cardinality(open) or call <> all (closed)
    group by call) as kept), '{}');

-- Stores new items from the number `first` on.
create function insert_items(
  tree_key bigint, owner text, first int, response_id text,
  item_ids text[], types text[], origins text[], bodies bytea[], prompts bytea[], item_tokens int[])
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  insert into item (tree_key, seq, owner, item_id, type, origin, body, prompt, tokens, response_id)
  select insert_items.tree_key, insert_items.first + u.n - 1, insert_items.owner, u.item_id, u.type, u.origin, u.body, u.prompt, u.tokens,
         insert_items.response_id
  from unnest(insert_items.item_ids, insert_items.types, insert_items.origins, insert_items.bodies, insert_items.prompts,
              insert_items.item_tokens)
    with ordinality as u(item_id, type, origin, body, prompt, tokens, n);
end
$$;

-- Makes a conversation with its first items and the row of its lease. The outcome is
--   created
--   repeated    it was there already; nothing is written
--   conflict    the tree is another owner's or another conversation's; nothing is written
--
-- Of two equal calls at once the later one ends in a unique violation on conversation_pkey; run again, it reads `repeated`.
create function create_conversation(
  tree_key bigint, owner text, conversation_id text, metadata bytea, open_calls text[], created_at timestamptz,
  item_ids text[], types text[], origins text[], bodies bytea[], prompts bytea[], item_tokens int[], left_out boolean[])
returns text
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  known conversation;
  items int := cardinality(create_conversation.item_ids);
  next int;
begin
  select * into known from conversation c where c.tree_key = create_conversation.tree_key;
  if found then
    return case
      when (known.owner, known.conversation_id) = (create_conversation.owner, create_conversation.conversation_id) then 'repeated'
      else 'conflict'
    end;
  end if;

  insert into tree as t (tree_key, owner, next_seq)
  values (create_conversation.tree_key, create_conversation.owner, 1 + items)
  on conflict (tree_key) do update
    set next_seq = t.next_seq + items
    where t.owner = excluded.owner
  returning t.next_seq into next;
  if not found then
    return 'conflict';
  end if;

  insert into lease (subject, holder, token, expires_at)
  values (create_conversation.conversation_id, '', 0, '-infinity')
  on conflict (subject) do nothing;
  insert into conversation (tree_key, conversation_id, owner, metadata, head, listed, open_calls, created_at)
  values (create_conversation.tree_key, create_conversation.conversation_id, create_conversation.owner, create_conversation.metadata,
          ranges_of_items(next - items, create_conversation.left_out), range_appended('{}', int4range(next - items, next)),
          create_conversation.open_calls, create_conversation.created_at);
  perform insert_items(create_conversation.tree_key, create_conversation.owner, next - items, '',
                       create_conversation.item_ids, create_conversation.types, create_conversation.origins, create_conversation.bodies,
                       create_conversation.prompts, create_conversation.item_tokens);
  return 'created';
end
$$;

-- Appends items to a conversation. The outcome is
--   added
--   not_found   there is no such conversation
--   locked      a turn holds its lease; nothing is written
--   full        its tree takes no further items; nothing is written
--
-- Each statement sees what was committed before it began: the lease's row, which every conversation has, is what additions, deletions and those who
-- take the lease wait for one another at.
create function add_conversation_items(
  tree_key bigint, owner text, conversation_id text, opened_calls text[], closed_calls text[], tree_max_items int,
  item_ids text[], types text[], origins text[], bodies bytea[], prompts bytea[], item_tokens int[], left_out boolean[])
returns text
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  items int := cardinality(add_conversation_items.item_ids);
  busy_until timestamptz;
  next int;
begin
  perform from conversation c
  where c.tree_key = add_conversation_items.tree_key and c.conversation_id = add_conversation_items.conversation_id
    and c.owner = add_conversation_items.owner;
  if not found then
    return 'not_found';
  end if;

  select l.expires_at into busy_until from lease l where l.subject = add_conversation_items.conversation_id for update;
  if busy_until > clock_timestamp() then
    return 'locked';
  end if;

  update tree t
  set next_seq = t.next_seq + items
  where t.tree_key = add_conversation_items.tree_key and t.owner = add_conversation_items.owner
    and t.next_seq <= add_conversation_items.tree_max_items
  returning t.next_seq into next;
  if not found then
    return 'full';
  end if;

  update conversation c
  set head = ranges_appended(c.head, ranges_of_items(next - items, add_conversation_items.left_out)),
      listed = range_appended(c.listed, int4range(next - items, next)),
      open_calls = calls_after(c.open_calls, add_conversation_items.closed_calls, add_conversation_items.opened_calls),
      revision = c.revision + 1
  where c.tree_key = add_conversation_items.tree_key and c.conversation_id = add_conversation_items.conversation_id
    and c.owner = add_conversation_items.owner;
  if not found then
    raise no_data_found using message = 'the conversation was deleted in this very moment';
  end if;

  perform insert_items(add_conversation_items.tree_key, add_conversation_items.owner, next - items, '',
                       add_conversation_items.item_ids, add_conversation_items.types, add_conversation_items.origins,
                       add_conversation_items.bodies, add_conversation_items.prompts, add_conversation_items.item_tokens);
  return 'added';
end
$$;

-- Takes numbers out of a conversation's list and out of its head. The outcome is
--   removed
--   not_found   there is no such conversation
--   locked      a turn holds its lease; nothing is written
--   changed     it is not at `revision` any more, so that the numbers may not be all that must go; nothing is written
create function remove_conversation_items(
  tree_key bigint, owner text, conversation_id text, revision int, listed_removed int[], head_removed int[], closed_calls text[])
returns text
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  busy_until timestamptz;
begin
  select l.expires_at into busy_until
  from lease l
  join conversation c on c.conversation_id = l.subject
  where c.tree_key = remove_conversation_items.tree_key and c.conversation_id = remove_conversation_items.conversation_id
    and c.owner = remove_conversation_items.owner
  for update of l;
  if busy_until > clock_timestamp() then
    return 'locked';
  end if;

  update tree t
  set dirty_at = clock_timestamp()
  where t.tree_key = remove_conversation_items.tree_key and t.owner = remove_conversation_items.owner;

  update conversation c
  set head = ranges_without(c.head, array(select int4range(n, n + 1) from unnest(remove_conversation_items.head_removed) as n)),
      listed = ranges_without(c.listed, array(select int4range(n, n + 1) from unnest(remove_conversation_items.listed_removed) as n)),
      open_calls = calls_after(c.open_calls, remove_conversation_items.closed_calls, '{}'),
      revision = c.revision + 1
  where c.tree_key = remove_conversation_items.tree_key and c.conversation_id = remove_conversation_items.conversation_id
    and c.owner = remove_conversation_items.owner and c.revision = remove_conversation_items.revision;
  if found then
    return 'removed';
  end if;

  perform from conversation c
  where c.tree_key = remove_conversation_items.tree_key and c.conversation_id = remove_conversation_items.conversation_id
    and c.owner = remove_conversation_items.owner;
  return case when found then 'changed' else 'not_found' end;
end
$$;
