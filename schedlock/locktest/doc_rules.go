// # Contract of a store
//
//  1. Look on an empty database returns no row, no term and the database's clock, without an
//     error.
//  2. Look returns the row and the newest term of one moment, whoever writes meanwhile.
//  3. Look and Terms change nothing.
//  4. Look with a context that has ended returns an error, and soon.
//  5. A token column that holds no token gives the zero Token and the text in RawToken, and can
//     be compared and swapped.
//  6. Snapshot.Now is the database's clock: it goes on between two looks, it is that of the
//     stamps, and all times are in UTC.
//  7. Acquire writes the lock row, with beat 0 and state leading, and an open term, both with the
//     claim's token and owner and the term granted.
//  8. The row keeps timings to the millisecond, any pid, and host names of up to 255 bytes with
//     quotes and any letters.
//  9. Acquire that judged a row returns ErrConflict unless token, term and beat are still the
//     same.
//  10. Acquire that judged no row returns ErrConflict, and deletes nothing, if there is a row or
//     the newest term is another.
//  11. An Acquire that returns ErrConflict has written nothing, neither to the row nor to the
//     history.
//  12. Of many that judged the same row at the same time exactly one gets the lock, the others
//     ErrConflict.
//  13. Of many that judged the lock free at the same time exactly one gets it, the others
//     ErrConflict.
//  14. Every term is higher than the one before, after a take-over as after a release, and not
//     below the database's clock in Unix ms.
//  15. The term granted is at least claim.MinTerm, and one more than the last where that is
//     higher.
//  16. Terms grow after the row was deleted, its term was raised or lowered, or the history was
//     emptied (then by MinTerm).
//  17. After a backup was restored Acquire works from what is there, and grants at least MinTerm.
//  18. Acquire writes the end of the newest term if that is open, with the claim's reason, and who
//     took over.
//  19. Acquire after a release leaves the end as its holder wrote it, and adds who took over.
//  20. An Acquire or Release that fails, at whatever moment its context ends, has written all or
//     nothing.
//  21. Heartbeat adds one to the beat, sets the stamp to the clock that it returns, and touches
//     nothing else.
//  22. Heartbeat writes the state it is given, and returns what stands in the row.
//  23. Heartbeat leaves and returns StateRevoked, whatever state it is given.
//  24. Heartbeat with another token or another term returns ErrLost and changes nothing.
//  25. Heartbeat without a row returns ErrLost and inserts nothing.
//  26. Heartbeats at the same time each add one.
//  27. Release deletes the row only if pid, hostname, token and term all match, and otherwise
//     returns false without an error.
//  28. Release deletes the row and writes the end of the term with its reason; a new claim
//     succeeds at once.
//  29. Release again returns false, without an error, and changes nothing.
//  30. Release of an old lease changes neither the row nor the term of its successor, even if that
//     looks alike.
//  31. Release of a lease whose row was deleted or edited returns false, leaves the row, and
//     writes the end of the lease's own term.
//  32. Terms returns at most limit terms, newest first; none for a limit of 0 or less.
//  33. The newest 1,000 terms stay; Terms returns no older ones, which go in time.
//  34. Acquire, Heartbeat, Release and Terms with a context that has ended return an error, soon,
//     and write nothing.
//  35. Fence of the holder returns nil, the transaction can be committed or rolled back, and the
//     row stays as it was.
//  36. Fence returns ErrLost for another token, another term, the lease before, and without a row.
//  37. While a fenced transaction is open nobody takes over; after it has ended a claim succeeds,
//     and the old lease's Fence returns ErrLost.
//  38. Acquire in face of a fenced transaction returns an error, long before a context of many
//     seconds ends.
//  39. If Fence returned nil the lock does not change hands before the transaction ends, however
//     close a take-over comes.
//  40. A heartbeat succeeds once a fenced transaction has ended, and, where that was promised,
//     already before.
//  41. Fence of something that is no transaction of the store's kind returns ErrNoFence.
//  42. AwaitHint returns soon after its context has ended.
//  43. AwaitHint returns soon after another handle released the lock; the term that it names, if
//     any, is that one, with the time of its end, or an earlier one.
//  44. Decide with From zero inserts the job's row; it returns ErrConflict if there is one, and a
//     Decide with From returns ErrConflict if there is none.
//  45. Decide returns ErrLost, and writes nothing, for another token, another term, the lease
//     before, and without a row.
//  46. Decide returns ErrConflict, and writes nothing, unless the cursor stands at From, to the
//     microsecond; and the cursor never goes back.
//  47. A second Decide of a tick that is in the ledger returns started = false; the cursor moves
//     all the same. Other jobs are no concern.
//  48. Of many decisions about the same tick at the same time exactly one is told that it started
//     it.
//  49. Decide returns the run as Runs does: in progress, attempt 1, with the id, the tick, the
//     database's time, and the holder's term, pid and hostname.
//  50. A range of skipped ticks is one row, with its last tick, count and reason; a single one has
//     neither last tick nor count; one that is in the ledger stays as it was.
//  51. Jobs returns every job with the spec and the cursor of its last decision.
//  52. Finish changes only a run that is in progress for that id, term and attempt, and tells
//     whether there was one; status and time of the end are kept.
//  53. Finish needs no lock: a leader that has lost it still records how its runs ended.
//  54. Finish keeps an error's text with line breaks, quotes and any letters, of 10,000 bytes;
//     text that the database cannot hold (NUL, no UTF-8) is changed, and the end is recorded all
//     the same.
//  55. Abandon marks the runs that other terms left in progress, with the time, returns them, and
//     touches no other.
//  56. Abandon returns ErrLost, and writes nothing, unless its ref holds the lock.
//  57. Runs returns at most limit runs, newest scheduled time first, of one job or of all; none
//     for a limit of 0 or less.
//  58. A tick is an instant: given in any time zone it is read back in UTC, with all its
//     microseconds, also long ago and far ahead.
//  59. Jobs, Decide, Finish, Abandon and Runs with a context that has ended return an error, soon,
//     and write nothing.
//  60. Retry starts the next attempt of a run that is failed or abandoned, has the attempt given,
//     and is owed another one; else started is false and nothing is written.
//  61. Retry returns the run as Runs does: in progress, with the next attempt, the database's
//     time, and the holder's term, pid and hostname; its error stays, and the end and what was
//     owed are cleared. The end of the attempt is that of the run.
//  62. Of many that retry the same attempt at the same time exactly one is told that it started
//     the next.
//  63. Retry and GiveUp return ErrLost, and write nothing, for another token, another term, the
//     lease before, and without a row.
//  64. GiveUp ends a run that is owed an attempt: its status, error and end stay, and it is owed
//     none. changed is false, and nothing is written, if it is owed none.
//  65. Finish keeps when the next attempt is due, to the microsecond, in UTC, and Abandon what
//     retryAt says of each run; without a time, or without retryAt, none is due.
//  66. Retries returns the runs of all jobs that are owed another attempt, as Runs does, first the
//     one that is due first, and no others.
//  67. Finish counts a success in the job's Done, Total and Longest, in whole microseconds, and
//     ends the Streak; it counts a failure in Failed and Streak. When they ended, and the error's
//     text, stay; a Finish that writes nothing counts nothing, and other jobs are no concern.
//  68. Stats keep the first 1,000 characters of an error's text; text that the database cannot
//     hold (NUL, no UTF-8) is changed, and the end is counted all the same.
//  69. Abandon counts each attempt that it marks as a failure of its job, with the time, and no
//     other.
//  70. Run returns the row of a job's tick as Runs does, given its scheduled time to the
//     microsecond, in any time zone; there is none for another job, another time, or a tick
//     inside a skipped range.
//  71. Trigger records a request with the database's time, in microseconds and UTC, who asked, and
//     why, and returns it as Pending does. It needs no leader.
//  72. Two requests for a job have two times, also of many at the same time, and each is kept.
//  73. Trigger and Pause refuse an order that is not valid, in the words of Order.Validate, and
//     return ErrNoJob for a job that has no row; only Pause takes the empty name. Nothing is
//     written.
//  74. Trigger returns a *PausedError with the pause in force, and writes nothing, while the job
//     or the whole scheduler is paused.
//  75. Answer removes the request and starts its run, as Runs has it: in progress, attempt 1, for
//     the request's time, with who asked, and why. started is false, and nothing is written, if
//     the request is there no more.
//  76. Answer with a reason to skip removes the request and records a skipped run, as Runs has it:
//     neither start nor end nor attempt, the reason, who asked, and why; nothing is started. A
//     reason that the database cannot hold (NUL, no UTF-8) is changed.
//  77. Of many that answer a request at the same time exactly one is told that it started the run.
//  78. Answer returns ErrLost, and writes nothing, for another token, another term, the lease
//     before, and without a row.
//  79. A Decide that starts a run, Retry, and an Answer that starts its run, return an ErrPaused
//     that is a *PausedError with the pause in force, and write nothing, while the job or the
//     whole scheduler is paused.
//  80. During a pause a decision that starts nothing is written, an Answer that skips, GiveUp,
//     Finish and Abandon too; a pause of another job is no concern.
//  81. Once Pause has returned, nothing is started that was under way meanwhile.
//  82. Pause records the database's time, who paused, and why, and returns it as Pending does; of
//     a job that is paused already it returns the pause in force, and writes nothing.
//  83. Resume ends the pause of a job, or that of the whole scheduler, and no other, and tells
//     whether there was one; Pending keeps who paused, who resumed, and when, until the next
//     pause, which is a new one.
//  84. Pending returns the requests of all jobs, oldest first, at most 100 of each, and the others
//     once these are answered.
//  85. Prune deletes rows of one job, oldest scheduled time first, at most limit, and tells how
//     many; the newest keep rows stay, and so do the job's cursor and Stats.
//  86. Prune leaves rows that are in progress, or owed an attempt, however old.
//  87. Retry, GiveUp, Retries, Run, Trigger, Answer, Pause, Resume, Pending and Prune with a
//     context that has ended return an error, soon, and write nothing.
//  88. Revoke sets the row to StateRevoked and touches nothing else of it; it keeps who, why and
//     the database's time with the term, and returns them as Look and Terms do.
//  89. Revoke of a term that was revoked before returns the first revocation, and writes nothing
//     that can be seen.
//  90. Revoke of a term that the row does not bear, and without a row, returns ErrConflict and
//     writes nothing.
//  91. Revoke with a context that has ended returns an error, soon, and writes nothing.
//  92. Jobs returns every job, also if a hand has written a cursor that is no time: that one with
//     the zero Cursor and a RawCursor. Decide with that RawFrom moves it; Decide with another
//     cursor returns ErrConflict, and writes nothing.
//  93. A cursor that a hand has written in the database's own words is read as that time, and
//     Decide moves it from the Cursor and the RawCursor that Jobs has returned.
//  94. Decide with Back moves a cursor that stands as it was read to any time; without Back it
//     returns ErrConflict if that is earlier. What has run before does not start again.
//  95. ResetCursor sets the cursor of a job to the database's time, wherever it stood, returns the
//     job so, and touches nothing else. It needs no leader. It returns ErrNoJob for a job that
//     has no row, and an error, soon, with a context that has ended.
//  96. Trigger returns a *BacklogError with the count and the limit, and writes nothing, while a
//     job has MaxPending requests; another job is no concern. Pending tells how many each job
//     has, and leaves out the requests of jobs that are paused.
//  97. Of an error's text Finish keeps at most MaxText bytes, whole letters from its beginning,
//     and a note that it was cut.
//  98. The row and its term keep the name and the program of the claim's app, of up to 200 bytes
//     with quotes and any letters, also after a heartbeat and a release. A claim without an app
//     leaves none.
//  99. The ids of the ledger's rows only grow, in the order in which the rows were made, also when
//     Prune has deleted the newest rows of a job.
//  100. A range of skipped ticks whose first tick is in the ledger already is recorded from the
//     next free microsecond on, without that tick; of two ticks, the second one is recorded.
//  101. Trigger, Pause, Resume and ResetCursor write an entry each: the order, the job, who, why
//     (Resume: nothing) and the database's time, of a request its own. One that changes nothing
//     or returns an error writes none. ResetCursor refuses an order that is not valid.
//  102. The first Revoke of a term writes an entry: a hand-over, without a job, by whom, why and
//     the time of the revocation. Another one of that term, and one that returns ErrConflict,
//     write none.
//  103. Audit returns the newest entries, newest first, at most limit, of one job or of all; with a
//     context that has ended an error, soon. The newest KeepAudit stay, and their ids only grow.
//  104. Present keeps what a replica tells, with the database's time, in the place of what its
//     instance has told before; Replicas returns all, by host name, pid and instance, and for how
//     long each has been silent. With forget none that has told lately goes.
//  105. Absent deletes the row of that instance, and no other; without one it does nothing.
//     Present, Absent and Replicas with a context that has ended return an error, soon, and write
//     nothing.
//  106. Retry keeps what the row says of the attempt that it replaces: number, start, end, status,
//     term, pid and hostname, and of a failed one the error. Attempts returns them, newest first,
//     without the latest. One that starts nothing keeps nothing.
//  107. Of the attempts that were replaced the newest 100 stay, of each run.
//  108. Prune deletes the attempts of the runs that it deletes, and no others. Attempts with a
//     context that has ended returns an error, soon.
//  109. Acquire that judged no row and an end of the newest term, without a watch, returns
//     ErrConflict, and deletes nothing, if there is a row or that term has no end.
//  110. Answer of a request whose time a tick of its job has by then removes it and returns started
//     = false; the run of the tick stays as it was.
//  111. Present with forget deletes the rows of other instances that have told nothing for longer
//     than ReplicaGone; without forget it deletes none.
//
// # Contract of a store of named locks
//
//  1. Look returns nil, without an error, for a key that was never taken.
//  2. Take of a free key grants a term, and Look then returns the row: key, token, owner, term,
//     the time in UTC, and what is left of its TTL.
//  3. Take of a key that is held returns no term, and the holder's row; nothing is written.
//  4. Of many that take a key at the same time exactly one gets it, also if it was held before
//     and has expired.
//  5. Names of up to 200 bytes are kept as they are: letter case, blanks, quotes and any letters
//     tell them apart, and so does the kind.
//  6. A row whose TTL has passed is free: Look returns nil, and Take grants it.
//  7. The terms of a key grow over release and expiry, by one at least, also if they are above
//     the database's clock in Unix ms; they are never below.
//  8. The terms of a key grow after its row was cleaned up, also if they were above the clock.
//  9. The terms of a key grow after its row was deleted by hand, if the clock has gone on.
//  10. Extend lets the row last a TTL from then, and touches nothing else.
//  11. Extend returns false, and changes nothing, for another token, another term, another key,
//     without a row, and after a release.
//  12. Extend of a row that has expired returns false and does not revive it, though nobody has
//     taken it.
//  13. Release frees the row: Look returns nil, and Take grants it at once.
//  14. Release returns false, and changes nothing, for another token, another term, another key,
//     and the second time.
//  15. Release and Extend of a lock that expired and was taken by another return false and touch
//     nothing.
//  16. Release with term 0 goes by the token alone.
//  17. A row that rests is not free, though it was released: Look returns it without a token, and
//     Take its row, until its time to rest has passed.
//  18. Release that does not keep the time to rest frees the row at once, and so does one after
//     that time.
//  19. Extend leaves the time to rest as it was.
//  20. Clean deletes rows that are free and ended a day ago, the oldest first, at most limit, and
//     tells how many; all others stay.
//  21. Take, Look, Extend, Release and Clean with a context that has ended return an error, soon,
//     and write nothing.
//  22. Fence of the holder returns true, the transaction can be committed or rolled back, and the
//     row stays as it was.
//  23. Fence returns false for another token, another term, after expiry, after a release, and
//     after a take-over.
//  24. While a fenced transaction is open nobody takes the key, though it expires; after it has
//     ended a Take succeeds, and the old Fence returns false.
//  25. Extend succeeds once a fenced transaction has ended, and, where that was promised, already
//     before; so does Release.
//  26. Fence of something that is no transaction of the store's kind returns ErrNoFence.
//  27. If more is left of a row than its TTL, since the clock was set back, Look is unsure, and
//     Take lets it end a TTL from then, and its time to rest; its holder goes on. So it is with a
//     time-out lock of a week.
//  28. After a fail-over Take grants nothing before the longer of the TTLs of the row and of the
//     claim has passed since the first Take: what was released, has expired, or was never taken.
//     Look says so, and writes nothing.
//  29. A holder goes on over a fail-over: Extend and Release return true, and let nobody take the
//     key sooner. Look is unsure of its row before the first Take.
//  30. Every term that is granted after a fail-over is at least 2^36 above every term before.
//  31. Revoke of a row that is held puts the mark in the place of its token, and returns true:
//     Extend and Release of the holder return false, Look says that it was revoked, and nobody
//     takes it before its time is over. With another term, of a free key, and the second time it
//     returns false and changes nothing.
//  32. Revoke of a row that rests, or of a time-out lock, frees it at once. List returns the rows
//     that are not free, as Look does, and those that were revoked and not taken since, by kind
//     and name, at most limit.
//
// # Contract of a store of queues
//
//  1. Add inserts tasks that are pending, with all their retries, and the database's time in UTC,
//     and returns their ids; Get returns them so. Get finds no other.
//  2. Add of an id that the queue has, in whatever state, does not return it and changes nothing;
//     the others are added. Another queue is no concern.
//  3. Of many that add the same ids at the same time each id is returned to exactly one.
//  4. Names of queues and tasks have up to 200 bytes, with quotes and any letters, and are told
//     apart by their bytes.
//  5. What AddTx has added is there once the transaction has been committed, and not after a
//     roll-back.
//  6. AddTx of something that is no transaction of the store's kind returns ErrTx, and adds
//     nothing.
//  7. Capture returns tasks of its queue in the order in which they were added, at most limit, as
//     Get has them: in progress, with one attempt more and all their retries.
//  8. Of many that capture at the same time each task is given to exactly one.
//  9. A task is captured by nobody else before its time-out has passed, and can be afterwards,
//     which costs a retry; its error is LostWorker then.
//  10. A task whose time-out has passed, and that has no retry left, is given to nobody: Capture
//     makes it failed, with the error LostWorker.
//  11. Capture that gets nothing returns ErrAllHeld if any task is held or delayed, else
//     ErrExhausted if it has itself found the last ones lost, else ErrEmpty, whatever has failed
//     before.
//  12. However many lost tasks have no retry left, a Capture with a small limit gets a task that
//     can be captured.
//  13. Done ends a task for good: it is never captured again. The same Done may be repeated; no
//     other call ends it, or begins it anew.
//  14. Done, Extend and Release of several tasks return those for which they did it, and do
//     nothing to the others.
//  15. Done, Extend, Release and Fail with another token, or of another queue, change nothing.
//  16. Done, Extend, Release and Fail change nothing once the time-out has passed, though nobody
//     has captured the task since.
//  17. After a task was captured again, released or failed, the calls of the worker before change
//     nothing.
//  18. Extend lets the time-out pass after its hold from now, whether that is later or earlier.
//  19. Release makes a task pending at its old place, with all its retries and the error that it
//     had.
//  20. Fail with a retry left makes a task pending, with one retry less and the error; without a
//     delay it can be captured at once, at its old place.
//  21. A task that has failed with a delay is captured by nobody before that has passed, and can
//     be afterwards, which costs no second retry.
//  22. Fail without a retry left makes a task failed, with the error, whatever the delay; it is
//     never captured again.
//  23. Of what can be captured the oldest come first, whether they are new, released, lost, or
//     were delayed.
//  24. Fail keeps 1,000 characters of any kind, with line breaks and quotes; no text is no error.
//  25. Prune deletes tasks of its queue that are done or failed and have been so for the time
//     given, at most limit, and tells how many; their ids can be added anew.
//  26. Add, Capture, Done, Extend, Release, Fail, Get and Prune with a context that has ended
//     return an error, soon, and write nothing.
//  27. If more is left of a time-out or a delay than its whole length, since the clock was set
//     back, Capture lets it pass that length from then; the worker goes on.
//  28. DoneTx ends a task with its transaction: it is done after the commit, and still the
//     worker's after a roll-back.
//  29. DoneTx with another token, of another queue, or once the time-out has passed, returns no id
//     and changes nothing; of several tasks it returns those that it has ended.
//  30. While a transaction is open in which DoneTx has ended a task nobody else gets it, though
//     its time-out passes; after the commit it is done, as Done with its token says.
//  31. DoneTx and AddAfter with something that is no transaction of the store's kind return ErrTx,
//     and change nothing.
//  32. A task that AddAfter has added is captured by nobody before its delay has passed, and can
//     be afterwards, at its place in the order, with all its retries; with a transaction it is
//     there after the commit only.
//  33. List returns tasks of its queue that are in the state, as Get has them, at most limit:
//     pending ones in their order with the delayed ones last, those in progress by when their
//     time-out passes, those that have ended the latest first.
//  34. Count counts the tasks of each queue by state, those with a delay apart, in the order of
//     the names; a queue without a task is not there.
//  35. Requeue makes tasks that are done or failed pending, at their old place, with the retries
//     given and the error that they had, returns their ids, and does nothing to others; the
//     worker before ends them no more.
//  36. AddAfter, List, Count and Requeue with a context that has ended return an error, soon, and
//     write nothing.
package locktest
