-- Trees, items, responses, conversations, leases and claims. Every row of a tree starts its key with the tree's, and names its owner.

-- Everything that is reachable from one root. Its row is what commits of the tree wait for one another at.
create table tree (
  tree_key bigint primary key,
  owner text not null,
  next_seq int not null,                                     -- the number that the next item gets
  dirty_at timestamptz                                       -- when a response of it was deleted last; null when there is nothing to sweep
);
create index tree_dirty on tree (dirty_at) where dirty_at is not null;

-- Each item once. `body` is what the API shows, without the id; an empty one is not shown. `prompt` is what the model sees: null means the body,
-- empty means nothing.
create table item (
  tree_key bigint not null,
  seq int not null,
  owner text not null,
  item_id text not null,                                     -- not unique: clients may send one id twice
  type text not null,
  origin text not null,                                      -- the provider whose opaque content it carries, or ''
  body bytea not null,
  prompt bytea,
  tokens int not null,
  response_id text not null,
  created_at timestamptz not null default now(),
  primary key (tree_key, seq)
);
create index item_by_id on item (tree_key, item_id);

-- One turn's outcome. Lists of ranges: `checkpoint` is what the next turn continues from, `input` all that the turn was given, `output` what
-- it made.
create table response (
  tree_key bigint not null,
  response_id text not null,
  owner text not null,
  round int not null,
  fencing_token bigint not null,
  content_hash bytea not null,
  parent_id text not null,                                   -- '' for the first of a chain
  conversation_id text not null,                             -- '' without a conversation
  status text not null,
  model text not null,
  checkpoint int4range[] not null,
  input int4range[] not null,
  output int4range[] not null,
  open_calls text[] not null,
  body bytea not null,                                       -- the response object without its id and output
  carried bytea not null,                                    -- what the caller wants to know again when it continues
  created_at timestamptz not null,
  completed_at timestamptz,
  expires_at timestamptz,                                    -- null: kept until somebody deletes it
  primary key (tree_key, response_id)
);
create index response_expiring on response (expires_at) where expires_at is not null;

create table conversation (
  tree_key bigint primary key,
  conversation_id text not null,
  owner text not null,
  head int4range[] not null default '{}',
  revision int not null default 0
);

-- Calls that may run at most once: claimed before they run, settled with their outcome.
create table claim (
  tree_key bigint not null,
  claim_id text not null,
  owner text not null,
  response_id text not null,                                 -- whose turn may run the call
  outcome bytea,
  claimed_at timestamptz not null default now(),
  settled_at timestamptz,
  primary key (tree_key, claim_id)
);

-- Who may work on a conversation or a background response. The token rises with each new holder.
create table lease (
  subject text primary key,
  holder text not null,
  token bigint not null,
  expires_at timestamptz not null
);
