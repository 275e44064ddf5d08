----------------------------- MODULE CompareAndSet -----------------------------
(* The Iceberg sink: rows and the epoch's mark in one change of the table, which the catalog takes if
   the branch is where the change was built upon. Answers are lost, requests arrive late, other
   writers commit, snapshots expire.

     Plan, Commit           lifecycle.EpochWrite
     Attempt, Send, Look    EpochCommit.run, _attempt, _compare_and_set, _load_table, _has_succeeded
     Stop                   EpochCommit._to_failure, IcebergCommitter.publish, discard *)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
  Drivers,   \* of the stream
  Jobs,      \* of batch jobs without a number: their epoch has no mark, and they are not run again
  Epochs,
  Lives,     \* how often a driver stages an epoch
  Tries,     \* attempts in a life
  Others,    \* how many snapshots other writers commit
  Expires,   \* whether snapshots expire
  Off        \* the rules that are switched off

VARIABLES
  table,     \* [head, seq, listed, mark, summaries]; what the catalog has
  applied,   \* history: changes that the catalog took
  wire,      \* requests that have not arrived yet
  files,     \* what is staged, or was: by driver and life
  spark,     \* newest epoch in commits/
  proc, others, step

vars == <<table, applied, wire, files, spark, proc, others, step>>
View == <<table, applied, wire, files, spark, proc, others>>

Rule(name) == name \notin Off
Procs == Drivers \cup Jobs
Stream == "stream"
QueryOf(p) == IF p \in Drivers THEN Stream ELSE p
HasMark(p) == p \in Drivers

\* A snapshot is named by who made it, in which life and attempt. `mark` is 0 where there is none.
NoSnapshot == [by |-> "nobody", life |-> 0, try |-> 0]
Nowhere == [at |-> "off", epoch |-> 0, life |-> 0, try |-> 0, base |-> NoSnapshot,
            first |-> 0, unknown |-> FALSE, failed |-> FALSE]

Init == /\ table = [head |-> NoSnapshot, seq |-> 0, listed |-> {}, mark |-> 0]
        /\ applied = {} /\ wire = {} /\ files = {} /\ spark = 0 /\ others = 0
        /\ proc = TLCEval([p \in Procs |-> Nowhere]) /\ step = [action |-> "Init"]

Did(action, p) == step' = [action |-> action, process |-> p]
Now(p, record) == proc' = [proc EXCEPT ![p] = record]

\* What a table says that a query holds: the property, or the newest summary that is left.
InSummaries == {s.epoch : s \in {s \in table.listed : s.query = Stream}}
Highest(S) == IF S = {} THEN 0 ELSE CHOOSE x \in S : \A y \in S : y <= x
Held == IF Rule("property") THEN table.mark ELSE Highest(InSummaries)

\* ------------------------------------------------------------------ catalog

Takes(t, request) == ~Rule("requirement") \/ t.head = request.base
Change(t, r) ==
  [head |-> r.id, seq |-> t.seq + 1,
   listed |-> t.listed \cup {[id |-> r.id, query |-> r.query, epoch |-> r.epoch, seq |-> t.seq + 1]},
   mark |-> IF r.query = Stream THEN r.epoch ELSE t.mark]

Arrives(r) ==   \* a request whose sender has given up, or is still waiting
  /\ r \in wire /\ wire' = wire \ {r}
  /\ IF Takes(table, r) THEN table' = Change(table, r) /\ applied' = applied \cup {r}
     ELSE UNCHANGED <<table, applied>>
  /\ step' = [action |-> "Arrives", id |-> r.id]
  /\ UNCHANGED <<files, spark, proc, others>>

OtherCommit ==
  /\ others < Others /\ others' = others + 1 /\ step' = [action |-> "OtherCommit"]
  /\ LET id == [by |-> "other", life |-> 0, try |-> others + 1]
         r == [id |-> id, base |-> table.head, query |-> "other", epoch |-> 0, files |-> <<"other", 0>>]
     IN table' = Change(table, r)
  /\ UNCHANGED <<applied, wire, files, spark, proc>>

Expire(s) ==
  /\ Expires /\ s \in table.listed /\ s.id # table.head
  /\ table' = [table EXCEPT !.listed = @ \ {s}] /\ step' = [action |-> "Expire", id |-> s.id]
  /\ UNCHANGED <<applied, wire, files, spark, proc, others>>

\* ------------------------------------------------------------------ drivers

Start(p) ==
  /\ proc[p].at = "off" /\ proc[p].life < (IF p \in Jobs THEN 1 ELSE Lives)
  /\ p \in Drivers => spark < Epochs
  /\ Now(p, [Nowhere EXCEPT !.at = "plan", !.life = proc[p].life + 1,
                            !.epoch = IF p \in Jobs THEN 1 ELSE spark + 1])
  /\ Did("Start", p)
  /\ UNCHANGED <<table, applied, wire, files, spark, others>>

Crash(p) ==
  /\ proc[p].at \notin {"off", "over"} /\ Did("Crash", p)
  /\ Now(p, [Nowhere EXCEPT !.life = proc[p].life])
  /\ UNCHANGED <<table, applied, wire, files, spark, others>>

Plan(p) ==   \* the tasks stage, unless the table has the epoch
  LET r == proc[p]
      held == HasMark(p) /\ r.epoch <= Held
  IN /\ r.at = "plan" /\ Did("Plan", p)
     /\ files' = IF held THEN files ELSE files \cup {<<p, r.life>>}
     /\ Now(p, [r EXCEPT !.at = IF held THEN "done" ELSE "commit"])
     /\ UNCHANGED <<table, applied, wire, spark, others>>

Done(p) ==
  LET r == proc[p] IN
  /\ r.at = "done" /\ Did("Done", p)
  /\ spark' = IF p \in Drivers /\ r.epoch > spark THEN r.epoch ELSE spark
  /\ Now(p, IF p \in Jobs THEN [Nowhere EXCEPT !.at = "over", !.life = 1]
            ELSE [Nowhere EXCEPT !.life = r.life])
  /\ UNCHANGED <<table, applied, wire, files, others>>

\* An error. Only if nothing can have happened, nor can happen, is what was staged removed.
Stops(p, r, unknown) ==
  /\ files' = IF unknown /\ Rule("untouched") THEN files
              ELSE files \ {f \in files : f = <<p, r.life>> /\ ~\E s \in applied : s.files = f}
  /\ Now(p, IF p \in Jobs THEN [Nowhere EXCEPT !.at = "over", !.life = 1, !.failed = ~unknown]
            ELSE [Nowhere EXCEPT !.life = r.life])

\* _attempt: look for the mark on the very metadata that the change is built upon.
Attempt(p, r) ==
  LET held == HasMark(p) /\ r.epoch <= Held /\ (Rule("mark") \/ r.try = 0)
      built == [r EXCEPT !.at = "send", !.base = table.head, !.try = @ + 1,
                         !.first = IF r.try = 0 THEN table.seq ELSE @]
  IN IF held THEN Stops(p, r, r.unknown) ELSE r.try < Tries /\ Now(p, built) /\ UNCHANGED files

Commit(p) ==
  /\ proc[p].at = "commit" /\ Attempt(p, proc[p]) /\ Did("Commit", p)
  /\ UNCHANGED <<table, applied, wire, spark, others>>

Request(p, r) ==
  [id |-> [by |-> p, life |-> r.life, try |-> r.try], base |-> r.base,
   query |-> QueryOf(p), epoch |-> r.epoch, files |-> <<p, r.life>>]

\* The answer comes, or not; the request has arrived, or arrives later, or never.
Send(p, answered, arrives) ==
  LET r == proc[p]
      request == Request(p, r)
      took == Takes(table, request)
  IN /\ r.at = "send" /\ (answered => arrives = "now")
     /\ IF arrives = "now" /\ took THEN table' = Change(table, request) /\ applied' = applied \cup {request}
        ELSE UNCHANGED <<table, applied>>
     /\ wire' = IF arrives = "later" THEN wire \cup {request} ELSE wire
     /\ Now(p, CASE answered /\ took -> [r EXCEPT !.at = "done"]
                 [] answered -> [r EXCEPT !.at = "look"]
                 [] OTHER -> [r EXCEPT !.at = "look", !.unknown = TRUE])
     /\ step' = [action |-> "Send", process |-> p, answered |-> answered, arrives |-> arrives]
     /\ UNCHANGED <<files, spark, others>>

\* One look at the table: is one of its snapshots there (_is_ours); may one have come and gone
\* (_check_history, for a job without a mark); else once more, upon what was found.
Look(p) ==
  LET r == proc[p]
      ours == \E s \in table.listed : s.id.by = p /\ s.id.life = r.life
      later == Cardinality({s \in table.listed : s.seq > r.first})
      gone == ~HasMark(p) /\ r.unknown /\ later < table.seq - r.first /\ Rule("history")
  IN /\ r.at = "look" /\ Did("Look", p)
     /\ IF ours /\ Rule("look") THEN Now(p, [r EXCEPT !.at = "done"]) /\ UNCHANGED files
        ELSE IF gone THEN Stops(p, r, TRUE) ELSE Attempt(p, r)
     /\ UNCHANGED <<table, applied, wire, spark, others>>

GiveUp(p) ==   \* commitTimeout, or the catalog cannot be asked; not before a look, if it can be
  LET r == proc[p]
      ours == \E s \in table.listed : s.id.by = p /\ s.id.life = r.life
  IN /\ r.at = "look" /\ Did("GiveUp", p)
     /\ \/ Stops(p, r, TRUE)
        \/ ~ours /\ Stops(p, r, r.unknown)
     /\ UNCHANGED <<table, applied, wire, spark, others>>

Next ==
  \/ \E p \in Procs :
       \/ Start(p) \/ Crash(p) \/ Plan(p) \/ Done(p) \/ Commit(p) \/ Look(p) \/ GiveUp(p)
       \/ \E answered \in BOOLEAN, arrives \in {"now", "later", "never"} : Send(p, answered, arrives)
  \/ \E r \in wire : Arrives(r)
  \/ OtherCommit \/ (\E s \in table.listed : Expire(s))

Spec == Init /\ [][Next]_vars

\* ------------------------------------------------------------------ what holds

Of(q, e) == {s \in applied : s.query = q /\ s.epoch = e}
NoDuplicate == \A p \in Procs, e \in 1..Epochs : Cardinality(Of(QueryOf(p), e)) <= 1
NoLoss == \A e \in 1..spark : Of(Stream, e) # {}
FilesAreThere == \A s \in applied : s.files \in files
RejectedIsNotTrue == \A p \in Jobs : proc[p].failed => Of(p, 1) = {}

Symmetric == Permutations(Drivers)
===============================================================================
