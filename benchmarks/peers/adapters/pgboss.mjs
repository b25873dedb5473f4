// pg-boss, with a queue for each task, LISTEN/NOTIFY and batches.

import { PgBoss } from 'pg-boss'

import * as kit from './kit.mjs'

const POOL = 20
const KILL = kit.MEASURE === 'kill'
// Ten seconds are the shortest heartbeat that it takes.
const queue = { notify: true, ...(KILL && { heartbeatSeconds: 10 }) }
// Half a second is the shortest interval that it takes; a notification wakes a worker at once.
const polling = { pollingIntervalSeconds: 0.5, notifyPollingIntervalSeconds: 0.5 }
const batches = { ...polling, batchSize: 1000, burstWhenBatchFull: true, localConcurrency: 2 }

function boss(options) {
    const one = new PgBoss({ connectionString: kit.URL, max: POOL, ...options })
    one.on('error', (error) => console.error(error))
    return one
}

class PgBossPeer {
    async setup() {
        await this.open()
        for (const task of ['noop', 'stamp', 'hold']) await this.boss.createQueue(task, queue)
        await this.close()
    }

    async open() {
        this.boss = await boss({ supervise: false, schedule: false }).start()
    }

    async close() {
        await this.boss.stop({ graceful: false })
    }

    async enqueue(task, n) {
        await this.boss.send(task, { n })
    }

    async enqueueMany(task, numbers) {
        await this.boss.insert(task, numbers.map((n) => ({ data: { n } })))
    }

    async work() {
        const one = await boss({
            useListenNotify: true,
            ...(KILL && { superviseIntervalSeconds: 10, monitorIntervalSeconds: 10 }),
            // Each look parses every schedule: more often, it holds up what is due.
            ...(kit.MEASURE === 'due' && { cronMonitorIntervalSeconds: 10, cronWorkerIntervalSeconds: 1 }),
        }).start()
        await one.work('noop', batches, async (jobs) => jobs.forEach(({ data }) => kit.noop(data.n)))
        await one.work('stamp', batches, async (jobs) => jobs.forEach(({ data }) => kit.stamp(data.n)))
        await one.work('hold', polling, async ([{ data }]) => await kit.hold(data.n))
    }

    // There is no call for many of them, so every connection of the pool takes the next one.
    async register(count, at) {
        const cron = kit.cronOf(at)
        const waiting = kit.numbered(count).values()
        const lane = async () => {
            for (const [key, n] of waiting) await this.boss.schedule('stamp', cron, { n }, { key })
        }
        await Promise.all(kit.range(POOL).map(lane))
    }

    async workSchedules() {
        await this.work()
    }
}

await kit.run(new PgBossPeer())
