// kit.py for Node: the same contract, the same verbs, the same files in $BENCH_METER. See there.
//
// An adapter exports nothing; it ends with `await run(itsPeer)`, an object with the methods that its verbs need:
//
//     setup()  open()  close()  enqueue(task, n)  enqueueMany(task, numbers)
//     work()  register(count, at)  workSchedules(count, at)
//
// The handlers of the peer call noop(n), stamp(n) and hold(n).

import { appendFileSync, openSync, readFileSync, readdirSync, renameSync, writeFileSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

export const URL = process.env.BENCH_URL ?? ''
const METER = process.env.BENCH_METER ?? '.'
export const MEASURE = process.env.BENCH_MEASURE ?? ''
const FEED_AHEAD = 5_000
const FEED_AT_ONCE = 1_000
const FLUSH_MS = 2
const BULK_SECONDS = 2

// Seconds since 1970 with microseconds, which Date.now() does not have.
const now = () => (performance.timeOrigin + performance.now()) / 1000

// Field 6 of its line; the name of the program, field 2, may hold blanks, so they are counted from behind it.
const session = () => readFileSync('/proc/self/stat', 'latin1').split(') ').at(-1).split(' ')[3]

// How many runs this process has done, in a file that others read. Node cannot map a file, and a write for each run would
// cost more than the run: so the number is written at most every 2 ms, and the last one so soon after the last run.
class Counter {
    #value = 0
    #bytes = Buffer.alloc(8)
    #waiting = false
    #file

    constructor() {
        // Under another name until it has its 8 bytes: whoever finds it can read it.
        const name = `count-${session()}-${process.pid}`
        writeFileSync(join(METER, `new-${name}`), this.#bytes)
        renameSync(join(METER, `new-${name}`), join(METER, name))
        this.#file = openSync(join(METER, name), 'r+')
        process.on('exit', this.#flush)
    }

    add() {
        this.#value += 1
        if (!this.#waiting) {
            this.#waiting = true
            setTimeout(this.#flush, FLUSH_MS).unref()
        }
    }

    #flush = () => {
        this.#waiting = false
        this.#bytes.writeBigUInt64LE(BigInt(this.#value))
        writeSync(this.#file, this.#bytes, 0, 8, 0)
    }
}

let counter

// Counted; nothing else.
export function noop(n) {
    counter ??= new Counter()
    counter.add()
}

// Written down with the time at which it started.
export function stamp(n) {
    write('stamp', `${n} ${now().toFixed(6)}\n`)
}

export async function hold(n) {
    stamp(n)
    await sleep(3_600_000)
}

function write(kind, line) {
    appendFileSync(join(METER, `${kind}-${process.pid}`), line)
}

// Runs done so far, by all.
function done() {
    const files = readdirSync(METER).filter((name) => name.startsWith('count-'))
    return files.reduce((sum, name) => sum + Number(readFileSync(join(METER, name)).readBigUInt64LE()), 0)
}

// Five fields that are due at this minute, and not again within the year.
export function cronOf(at) {
    return `${at.getUTCMinutes()} ${at.getUTCHours()} ${at.getUTCDate()} ${at.getUTCMonth() + 1} *`
}

export function range(count) {
    return Array.from({ length: count }, (_, n) => n)
}

export function numbered(count) {
    return range(count).map((n) => [`job-${n}`, n])
}

async function seconds(what) {
    const began = performance.now()
    await what()
    return (performance.now() - began) / 1000
}

async function putIn(peer, verb, [first, second]) {
    const count = Number(first)
    await peer.open()
    let taken
    if (verb === 'enqueue-many') {
        await peer.enqueueMany('noop', range(count))
    } else if (verb === 'enqueue-bulk') {
        await peer.enqueueMany('noop', range(40)) // the first one opens connections
        taken = await bulk(peer, range(count))
    } else if (verb === 'enqueue-single') {
        await peer.enqueue('noop', 0) // the first one opens connections
        taken = await seconds(async () => {
            for (let n = 0; n < count; n++) await peer.enqueue('noop', n)
        })
    } else if (verb === 'hold') {
        await peer.enqueue('hold', 0)
    } else if (verb === 'ask') {
        await ask(peer, count)
    } else if (verb === 'feed') {
        await feed(peer, count)
    } else if (verb === 'register') {
        taken = await seconds(() => peer.register(count, instant(second)))
    } else {
        throw new Error(`unknown verb ${verb}`)
    }
    await peer.close()
    return taken
}

async function bulk(peer, numbers) {
    let [taken, times] = [0, 0]
    for (; taken < BULK_SECONDS; times++) taken += await seconds(() => peer.enqueueMany('noop', numbers))
    return taken / times
}

async function ask(peer, count) {
    for (let n = 0; n < count; n++) {
        const asked = now()
        await peer.enqueue('stamp', n)
        write('asked', `${n} ${asked.toFixed(6)}\n`)
        await sleep(10 + 20 * Math.random())
    }
}

async function feed(peer, length) {
    const until = performance.now() + length * 1000
    const before = done()
    let given = 0
    while (performance.now() < until) {
        if (given - (done() - before) >= FEED_AHEAD) {
            await sleep(5)
            continue
        }
        await peer.enqueueMany('noop', range(FEED_AT_ONCE))
        // All that was there before these has been done while they were put in.
        if (given && done() - before >= given) write('dry', `${given} ${now().toFixed(6)}\n`)
        given += FEED_AT_ONCE
    }
}

const instant = (text) => new Date(Number(text) * 1000)

export async function run(peer) {
    const [verb, ...words] = process.argv.slice(2)
    if (verb === 'work') {
        await peer.work()
    } else if (verb === 'work-schedules') {
        await peer.workSchedules(Number(words[0]), instant(words[1]))
    } else if (verb === 'setup') {
        await peer.setup()
        process.exit()
    } else {
        const taken = await putIn(peer, verb, words)
        if (taken !== undefined) console.log(JSON.stringify({ seconds: taken }))
        process.exit()
    }
}
