// Graphile Worker, with the local queue and the batching of its performance page, both larger.

import { EventEmitter, once } from 'node:events'

import { Logger, makeWorkerUtils, parseCronItems, run as startRunner, runMigrations } from 'graphile-worker'

import * as kit from './kit.mjs'

process.env.NO_LOG_SUCCESS = '1' // as its own performance test does: no line for each job

const logger = new Logger(() => (level, message) => {
    if (level === 'error' || level === 'warning') console.error(message)
})
const preset = {
    worker: {
        connectionString: kit.URL,
        concurrentJobs: 24,
        maxPoolSize: 25,
        localQueue: { size: 2000 },
        completeJobBatchDelay: 50,
        failJobBatchDelay: 50,
        logger,
    },
}
const taskList = {
    noop: ({ n }) => kit.noop(n),
    stamp: ({ n }) => kit.stamp(n),
    hold: ({ n }) => kit.hold(n),
}

// Schedules are a list in code; the worker that starts with it writes their names down.
function cronItems(count, at) {
    const match = kit.cronOf(at)
    return parseCronItems(kit.numbered(count).map(([identifier, n]) => ({ task: 'stamp', match, identifier, payload: { n } })))
}

class GraphileWorker {
    async setup() {
        await runMigrations({ preset })
    }

    async open() {
        this.utils = await makeWorkerUtils({ preset })
    }

    async close() {
        await this.runner?.stop()
        await this.utils.release()
    }

    async enqueue(task, n) {
        await this.utils.addJob(task, { n })
    }

    // The statement of its own performance test: the SQL function, without sending every job back as addJobs() does.
    async enqueueMany(identifier, numbers) {
        const jobs = JSON.stringify(numbers.map((n) => ({ identifier, payload: { n } })))
        const specs = 'select json_populate_recordset(null::graphile_worker.job_spec, $1::json)'
        await this.utils.withPgClient((client) => client.query(`select 1 from graphile_worker.add_jobs(array(${specs}))`, [jobs]))
    }

    async work(parsedCronItems = []) {
        const runner = await startRunner({ preset, taskList, parsedCronItems })
        await runner.promise
    }

    async register(count, at) {
        const events = new EventEmitter()
        const started = once(events, 'cron:started')
        this.runner = await startRunner({ preset, taskList, events, parsedCronItems: cronItems(count, at) })
        await started
    }

    async workSchedules(count, at) {
        await this.work(cronItems(count, at))
    }
}

await kit.run(new GraphileWorker())
