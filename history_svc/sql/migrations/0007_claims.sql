-- Claims of the calls of a round are needed as long as the turn may be run again; a sweep finds the old ones here. Those of approved calls have other
-- ids and stay as long as their tree.
create index claim_of_round on claim (claimed_at) where claim_id like 'call\_%';
