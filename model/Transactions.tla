----------------------------- MODULE Transactions -----------------------------
(* What Kafka's brokers do with the transactions of this sink: the coordinator of each transactional
   id, and the leaders of the partitions that it writes to. Every operator takes a state of the
   brokers and gives the next one; whose steps they are is in EpochLog.

   A decision and its markers are one step here: EndTxn is answered when the outcome is decided, and
   what is written of the same transaction before its marker shares its fate.

   TV1: partitions are added to a transaction one by one (AddPartitionsToTxn), EndTxn leaves the
   producer epoch as it is. TV2 (KIP-890): Produce adds them, EndTxn raises the epoch. A time-out, and
   InitProducerId over an open transaction, raise it under both. *)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
  Ids,     \* transactional ids
  TV,      \* 1 or 2: the rules of the cluster
  Verify,  \* TV1: whether leaders ask the coordinator before they begin a transaction (Kafka 3.6)
  First,   \* the producer epoch of an id that is new
  Top      \* the highest producer epoch (Short.MaxValue at a broker)

\* A transaction as intents name it: id, producer id, producer epoch. A producer id is known by how
\* many its transactional id had before.
Nobody == [state |-> "none", pid |-> 0, epoch |-> 0, parts |-> {}]

\* of: by id, what the coordinator says (DescribeTransactions). open: records of transactions that no
\* marker has ended. visible: rows of committed ones. leaders: TV1 without verification, the newest
\* epoch that a partition's leader has seen of a producer.
NoTransactions == [of |-> TLCEval([id \in Ids |-> Nobody]), open |-> {}, visible |-> {}, leaders |-> {}]

IsExhausted(epoch) == epoch >= Top - 1

Seen(k, id, pid, part) ==
  LET known == {l.epoch : l \in {l \in k.leaders : l.id = id /\ l.pid = pid /\ l.part = part}}
  IN IF known = {} THEN -1 ELSE CHOOSE e \in known : \A f \in known : f <= e

Learn(k, id, pid, parts, epoch) ==
  IF TV = 2 \/ Verify THEN k.leaders
  ELSE {l \in k.leaders : ~(l.id = id /\ l.pid = pid /\ l.part \in parts /\ l.epoch < epoch)}
       \cup {[id |-> id, pid |-> pid, part |-> part, epoch |-> epoch] :
                part \in {part \in parts : Seen(k, id, pid, part) < epoch}}

\* The markers that end a transaction end all that the leader has open of its producer id.
Mark(k, id, epoch, now, commit) ==
  LET old == k.of[id]
      hit == {r \in k.open : r.id = id /\ r.pid = old.pid /\ r.part \in old.parts}
  IN [of |-> [k.of EXCEPT ![id] = now],
      open |-> k.open \ hit,
      visible |-> IF commit THEN k.visible \cup {r.row : r \in hit} ELSE k.visible,
      leaders |-> Learn(k, id, old.pid, old.parts, epoch)]

Ended(old, commit) ==
  LET state == IF commit THEN "committed" ELSE "aborted" IN
  IF TV = 1 THEN [old EXCEPT !.state = state, !.parts = {}]
  ELSE IF IsExhausted(old.epoch)
       THEN [state |-> state, pid |-> old.pid + 1, epoch |-> 0, parts |-> {}]
       ELSE [old EXCEPT !.state = state, !.epoch = @ + 1, !.parts = {}]

\* The abort that comes with a higher epoch: of a time-out, and of InitProducerId.
Fence(k, id) ==
  LET old == k.of[id]
      now == [old EXCEPT !.state = "aborted", !.epoch = @ + 1, !.parts = {}]
  IN Mark(k, id, now.epoch, now, FALSE)

TimeOut(k, id) == Fence(k, id)

\* InitProducerId: an open transaction is fenced first, and the caller has to ask once more.
InitProducerId(k, id) ==
  LET old == k.of[id] IN
  IF old.state = "ongoing" THEN Fence(k, id)
  ELSE [k EXCEPT !.of[id] =
          IF old.state = "none" THEN [Nobody EXCEPT !.state = "empty", !.epoch = First]
          ELSE IF IsExhausted(old.epoch)
               THEN [state |-> "empty", pid |-> old.pid + 1, epoch |-> 0, parts |-> {}]
               ELSE [old EXCEPT !.state = "empty", !.epoch = @ + 1, !.parts = {}]]

Taken(k, id) ==   \* asked until the caller has it
  IF k.of[id].state = "ongoing" THEN InitProducerId(Fence(k, id), id) ELSE InitProducerId(k, id)

\* InitProducerId with the producer that is expected (KIP-360), which is not looked at while a
\* transaction is open, whosoever it is.
FenceProducer(k, x) ==
  LET old == k.of[x.id]
      same == old.pid = x.pid /\ old.epoch = x.epoch
  IN IF old.state = "ongoing" \/ same THEN InitProducerId(k, x.id) ELSE k

IsCurrent(k, x) == k.of[x.id].pid = x.pid /\ k.of[x.id].epoch = x.epoch

\* EndTxn, and whether it is answered with success. Repeating it is answered as before.
EndTxn(k, x, commit) ==
  IF IsCurrent(k, x) /\ k.of[x.id].state = "ongoing"
  THEN Mark(k, x.id, x.epoch, Ended(k.of[x.id], commit), commit)
  ELSE k

IsEnded(k, x, commit) ==
  LET now == k.of[x.id]
      same == IF TV = 2 /\ IsExhausted(x.epoch) THEN now.pid = x.pid + 1 /\ now.epoch = 0
              ELSE now.pid = x.pid /\ now.epoch = x.epoch + (IF TV = 1 THEN 0 ELSE 1)
  IN \/ IsCurrent(k, x) /\ now.state = "ongoing"
     \/ same /\ now.state = (IF commit THEN "committed" ELSE "aborted")

RECURSIVE EndAll(_, _, _)
EndAll(k, xs, commit) ==
  IF xs = {} THEN k
  ELSE LET x == CHOOSE x \in xs : TRUE IN EndAll(EndTxn(k, x, commit), xs \ {x}, commit)

RECURSIVE FenceAll(_, _)
FenceAll(k, xs) ==
  IF xs = {} THEN k
  ELSE LET x == CHOOSE x \in xs : TRUE IN FenceAll(FenceProducer(k, x), xs \ {x})

Ongoing(k) == {[id |-> id, pid |-> k.of[id].pid, epoch |-> k.of[id].epoch] :
                  id \in {id \in Ids : k.of[id].state = "ongoing"}}

\* A record of a producer, to a partition that it has added to its transaction before, or not.
MayProduce(k, x, part, added) ==
  LET now == k.of[x.id] IN
  CASE TV = 2 -> IsCurrent(k, x) /\ now.state \in {"empty", "ongoing"}
    [] TV = 1 /\ ~added -> IsCurrent(k, x)  \* AddPartitionsToTxn: it may begin another one
    [] OTHER -> IF Verify THEN IsCurrent(k, x) /\ now.state = "ongoing" /\ part \in now.parts
                ELSE Seen(k, x.id, x.pid, part) <= x.epoch

Produce(k, x, part, added, row) ==
  LET now == k.of[x.id]
      joined == [now EXCEPT !.state = "ongoing", !.parts = @ \cup {part}]
  IN [of |-> IF TV = 1 /\ added THEN k.of ELSE [k.of EXCEPT ![x.id] = joined],
      open |-> k.open \cup {[id |-> x.id, pid |-> x.pid, part |-> part, row |-> row]},
      visible |-> k.visible,
      leaders |-> Learn(k, x.id, x.pid, {part}, x.epoch)]

\* Records that nobody will ever end: no coordinator knows of their transaction.
Hanging(k) == {r \in k.open : LET now == k.of[r.id] IN
                 now.state # "ongoing" \/ now.pid # r.pid \/ r.part \notin now.parts}
===============================================================================
