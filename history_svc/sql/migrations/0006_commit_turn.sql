-- Saves one turn, or one more round of a background turn, in one statement of the caller. The outcome is
--   stored      done now
--   repeated    this very save was made before; nothing is written
--   conflict    the response id is stored with other content, or its turn has ended; nothing is written
--   stale       the lease has passed to another holder and the caller must hold it; nothing is written
--   not_found   the tree is another owner's, or the tree of the base is gone; nothing is written
--
-- The function of this name with fewer arguments is what processes of the version before call.
--
-- Locks are taken in the order work, lease of the conversation, lease of the response, tree, conversation, log, as everywhere. Each statement sees
-- what was committed before it began; but of two equal first saves at once the later one ends in a unique violation on response_pkey, with nothing
-- written. The caller runs it again, once, and then reads `repeated` or `conflict`. A base whose items are gone while they are to be copied ends in
-- no_data_found, with nothing written.
--
-- `base` comes from the caller, who loaded it: the parent's row is not read, it may be gone by now.
create function commit_turn(
  tree_key bigint, owner text, response_id text, round int, fencing_token bigint, must_hold boolean, content_hash bytea,
  parent_id text, conversation_id text,
  base_firsts int[], base_ends int[],
  base_tree_key bigint,                       -- the tree that the base counts in; its items are copied when that is another one
  item_ids text[], types text[], origins text[], bodies bytea[], prompts bytea[], item_tokens int[],
  left_out boolean[],                         -- the items that stand in no checkpoint and no head
  inputs int,                                 -- how many of the items are input; the rest is output
  status text, model text, open_calls text[], closed_calls text[], body bytea, carried bytea, resume_state bytea, unlisted boolean,
  removed_firsts int[], removed_ends int[],   -- what goes out of the conversation's head, if the turn has held its lease to the end
  created_at timestamptz, completed_at timestamptz, expires_at timestamptz)
returns table (outcome text, checkpoint_firsts int[], checkpoint_ends int[])
language plpgsql
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  known response;                             -- the response as it is stored, if it is
  is_background boolean;
  is_end boolean := commit_turn.status not in ('queued', 'in_progress');
  joins boolean;                              -- whether the turn's items go into its conversation
  conversation_token bigint;
  response_lease lease;
  holds boolean := true;
  base int4range[] := ranges_of(commit_turn.base_firsts, commit_turn.base_ends);
  base_items int := coalesce((select sum(e - f) from unnest(commit_turn.base_firsts, commit_turn.base_ends) as b(f, e)), 0);
  own_items int := cardinality(commit_turn.item_ids);
  copies int := 0;
  next int;
  first int;
  given int4range[];                          -- base and copies
  own int4range;
  kept int4range[];
  all_own int4range[];
  all_closed text[];
begin
  select r.background into is_background
  from response r
  where r.tree_key = commit_turn.tree_key and r.response_id = commit_turn.response_id and r.owner = commit_turn.owner;
  is_background := coalesce(is_background, false);

  if is_background then
    perform from work w where w.response_id = commit_turn.response_id and w.owner = commit_turn.owner for update;
  end if;
  if commit_turn.conversation_id <> '' then
    select l.token into conversation_token
    from lease l
    join conversation c on c.conversation_id = l.subject
    where c.tree_key = commit_turn.tree_key and c.conversation_id = commit_turn.conversation_id and c.owner = commit_turn.owner
    for update of l;
  end if;
  if is_background or commit_turn.must_hold then
    select l.* into response_lease
    from lease l
    where l.subject = case when is_background then commit_turn.response_id
                           else coalesce(nullif(commit_turn.conversation_id, ''), commit_turn.response_id) end
    for update;
    holds := found and response_lease.token = commit_turn.fencing_token and response_lease.holder <> '';
  end if;

  select r.* into known
  from response r
  where r.tree_key = commit_turn.tree_key and r.response_id = commit_turn.response_id and r.owner = commit_turn.owner;
  if found then
    if (known.round, known.fencing_token, known.content_hash) = (commit_turn.round, commit_turn.fencing_token, commit_turn.content_hash) then
      return query select 'repeated', firsts_of(known.checkpoint), ends_of(known.checkpoint);
      return;
    end if;
    if not (known.background and known.status in ('queued', 'in_progress') and commit_turn.must_hold) then
      return query select 'conflict', null::int[], null::int[];
      return;
    end if;
  end if;
  if not holds then
    return query select 'stale', null::int[], null::int[];
    return;
  end if;
  if commit_turn.round < known.round or (commit_turn.round = known.round and not is_end) then
    return query select 'conflict', null::int[], null::int[];
    return;
  end if;

  if commit_turn.base_tree_key <> commit_turn.tree_key then
    copies := base_items;
  end if;
  if base_items = 0 or copies > 0 then
    insert into tree as t (tree_key, owner, next_seq)
    values (commit_turn.tree_key, commit_turn.owner, 1 + copies + own_items)
    on conflict (tree_key) do update
      set next_seq = t.next_seq + excluded.next_seq - 1
      where t.owner = excluded.owner
    returning t.next_seq into next;
  else                                        -- a continuation moves its tree and never makes one
    update tree t
    set next_seq = t.next_seq + own_items
    where t.tree_key = commit_turn.tree_key and t.owner = commit_turn.owner
      and t.next_seq >= (select max(e) from unnest(commit_turn.base_ends) as e)   -- numbers not given out yet are not of this tree
    returning t.next_seq into next;
  end if;
  if not found then
    return query select 'not_found', null::int[], null::int[];
    return;
  end if;

  first := next - own_items;                  -- the numbers: first the copies, then the turn's own items
  if copies > 0 then
    insert into item (tree_key, seq, owner, item_id, type, origin, body, prompt, tokens, response_id, created_at)
    select commit_turn.tree_key, first - copies + row_number() over () - 1, commit_turn.owner, i.*
    from unnest(base) with ordinality as b(span, place)
    cross join lateral (
      select item.item_id, item.type, item.origin, item.body, item.prompt, item.tokens, item.response_id, item.created_at
      from item
      where item.tree_key = commit_turn.base_tree_key and item.owner = commit_turn.owner
        and item.seq >= lower(b.span) and item.seq < upper(b.span)
      order by item.seq offset 0) as i;
    get diagnostics copies = row_count;
    if copies <> base_items then
      raise no_data_found using message = 'items of the base are gone';
    end if;
    base := '{}';
  end if;
  perform insert_items(commit_turn.tree_key, commit_turn.owner, first, commit_turn.response_id, commit_turn.item_ids, commit_turn.types,
                       commit_turn.origins, commit_turn.bodies, commit_turn.prompts, commit_turn.item_tokens);

  given := range_appended(base, int4range(first - copies, first));
  own := int4range(first, next);
  kept := ranges_appended(given, ranges_of_items(first, commit_turn.left_out));
  if known.response_id is null then
    all_own := range_appended('{}', own);
    all_closed := commit_turn.closed_calls;
    insert into response (tree_key, response_id, owner, round, fencing_token, content_hash, parent_id, conversation_id, status, model,
                          checkpoint, input, output, own, open_calls, closed_calls,
                          body, carried, resume_state, unlisted, created_at, completed_at, expires_at)
    values (commit_turn.tree_key, commit_turn.response_id, commit_turn.owner, commit_turn.round, commit_turn.fencing_token,
            commit_turn.content_hash, commit_turn.parent_id, commit_turn.conversation_id, commit_turn.status, commit_turn.model,
            kept, range_appended(given, int4range(first, first + commit_turn.inputs)),
            range_appended('{}', int4range(first + commit_turn.inputs, next)), all_own, commit_turn.open_calls, all_closed,
            case when commit_turn.unlisted then '' else commit_turn.body end, commit_turn.carried, commit_turn.resume_state,
            commit_turn.unlisted, commit_turn.created_at, commit_turn.completed_at, commit_turn.expires_at);
  else
    all_own := range_appended(known.own, own);
    all_closed := known.closed_calls || commit_turn.closed_calls;
    update response r
    set round = commit_turn.round, fencing_token = commit_turn.fencing_token, content_hash = commit_turn.content_hash,
        status = commit_turn.status, model = commit_turn.model, checkpoint = kept,
        input = range_appended(case when known.round = 0 then given else known.input end, int4range(first, first + commit_turn.inputs)),
        output = range_appended(known.output, int4range(first + commit_turn.inputs, next)), own = all_own,
        open_calls = commit_turn.open_calls, closed_calls = all_closed, body = commit_turn.body, carried = commit_turn.carried,
        resume_state = commit_turn.resume_state, completed_at = commit_turn.completed_at,
        expires_at = case when is_end then commit_turn.expires_at end
    where r.tree_key = commit_turn.tree_key and r.response_id = commit_turn.response_id and r.owner = commit_turn.owner;
  end if;

  joins := commit_turn.conversation_id <> '' and commit_turn.status in ('completed', 'incomplete');
  if joins then                               -- a delta on the newest head, whatever the turn had loaded
    update conversation c
    set head = ranges_appended(
          case when coalesce(conversation_token, 0) = commit_turn.fencing_token
            then ranges_without(c.head, ranges_of(commit_turn.removed_firsts, commit_turn.removed_ends)) else c.head end,
          ranges_within(kept, all_own)),
        listed = ranges_appended(c.listed, all_own),
        open_calls = calls_after(c.open_calls, all_closed, commit_turn.open_calls),
        carried = case when coalesce(conversation_token, 0) = commit_turn.fencing_token then commit_turn.carried else c.carried end,
        revision = c.revision + 1
    where c.tree_key = commit_turn.tree_key and c.conversation_id = commit_turn.conversation_id and c.owner = commit_turn.owner;
  end if;

  if is_end and conversation_token = commit_turn.fencing_token then
    update lease l
    set holder = '', expires_at = '-infinity'
    where l.subject = commit_turn.conversation_id and l.token = commit_turn.fencing_token;
  end if;
  if is_end and is_background then
    delete from work w where w.response_id = commit_turn.response_id and w.owner = commit_turn.owner;
    delete from lease l where l.subject = commit_turn.response_id;
    update event_log e
    set ended_at = clock_timestamp()
    where e.tree_key = commit_turn.tree_key and e.response_id = commit_turn.response_id and e.owner = commit_turn.owner;
  end if;
  return query select 'stored', firsts_of(kept), ends_of(kept);
end
$$;
