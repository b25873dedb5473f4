// BullMQ, in one queue.

import { Queue, Worker } from 'bullmq'

import * as kit from './kit.mjs'

const QUEUE = 'bench'
const connection = { url: kit.URL }
// To be found dead soon: shorter than the defaults, of 30 s each.
const signs = kit.MEASURE === 'kill' ? { lockDuration: 5000, stalledInterval: 5000 } : {}
const handlers = { noop: kit.noop, stamp: kit.stamp, hold: kit.hold }

class BullMQ {
    setup() {}

    async open() {
        this.queue = new Queue(QUEUE, { connection })
        await this.queue.waitUntilReady()
    }

    async close() {
        await this.queue.close()
    }

    async enqueue(task, n) {
        await this.queue.add(task, { n })
    }

    async enqueueMany(task, numbers) {
        await this.queue.addBulk(numbers.map((n) => ({ name: task, data: { n } })))
    }

    async work() {
        const worker = new Worker(QUEUE, async (job) => handlers[job.name](job.data.n), {
            connection,
            concurrency: 100,
            removeOnComplete: { count: 1000 },
            drainDelay: 1,
            ...signs,
        })
        worker.on('error', (error) => console.error(error))
        await worker.waitUntilReady()
    }

    // There is no call for many of them; the client sends those that wait in one go.
    async register(count, at) {
        const repeat = { pattern: kit.cronOf(at), tz: 'UTC' }
        const upsert = ([id, n]) => this.queue.upsertJobScheduler(id, repeat, { name: 'stamp', data: { n } })
        await Promise.all(kit.numbered(count).map(upsert))
    }

    async workSchedules() {
        await this.work()
    }
}

await kit.run(new BullMQ())
