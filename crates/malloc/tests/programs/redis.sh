# A server on a socket in this folder: a benchmark, a snapshot by a forked child while it runs, a known set of data, a
# restart from the snapshot. Prints what must be the same in every run.
set -eu
call() { redis-cli -s redis.sock "$@"; }
start() {
    redis-server --port 0 --unixsocket redis.sock --save '' --dir . --enable-debug-command yes --logfile redis.log "$@" &
    server=$!
    for i in $(seq 200); do
        call ping >/dev/null 2>&1 && return
        sleep 0.05
    done
    echo 'the server does not answer' >&2
    exit 1
}
snapshot_done() {
    for i in $(seq 400); do
        call info persistence | grep -q 'rdb_bgsave_in_progress:0' && break
        sleep 0.05
    done
    call info persistence | grep 'rdb_last_bgsave_status'
}

start --io-threads 2
redis-benchmark -s redis.sock -q -n 20000 -r 5000 -c 20 -P 8 -d 100 \
    -t set,get,incr,lpush,rpush,lpop,rpop,sadd,hset,spop,zadd,mset >benchmark.txt 2>&1 &
benchmark=$!
sleep 0.3
call bgsave >/dev/null
wait $benchmark
grep -c 'requests per second' benchmark.txt
snapshot_done
call flushall
call eval '
    for i = 1, 20000 do
        redis.call("set", "string:" .. i, string.rep("v", i % 500))
        redis.call("hset", "hash:" .. i % 500, "field" .. i, i)
        redis.call("zadd", "sorted:" .. i % 100, i * 7919 % 1000, "member" .. i)
        redis.call("rpush", "list:" .. i % 50, string.rep("item", i % 30))
        redis.call("sadd", "set:" .. i % 200, i)
        redis.call("append", "growing:" .. i % 10, string.rep("x", 50))
    end
    for i = 1, 20000, 3 do redis.call("del", "string:" .. i) end
    return redis.call("dbsize")' 0
call debug digest
call bgsave >/dev/null
snapshot_done
call bgrewriteaof >/dev/null
call config set activedefrag no
call memory purge
call debug digest
call shutdown nosave || true
wait $server || true
start
call dbsize
call debug digest
call getrange growing:3 99990 -1
call debug reload
call debug digest
call shutdown nosave || true
wait $server || true
