# A repository from init to gc; dates and names are fixed, so that every object has the same name in every run.
set -eu
export HOME="$PWD" GIT_CONFIG_NOSYSTEM=1 LC_ALL=C
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.com GIT_COMMITTER_NAME=c GIT_COMMITTER_EMAIL=c@example.com
git init -q -b main work
cd work
git config gc.auto 0
git config pack.threads 4
for commit in $(seq 1 25); do
    export GIT_AUTHOR_DATE="2020-01-01T00:00:$commit+00:00" GIT_COMMITTER_DATE="2020-01-01T00:00:$commit+00:00"
    awk -v c="$commit" 'BEGIN { for (f = 0; f < 20; f++) for (i = 0; i < 400; i++)
        print (i * 7 + f * 13 + (i % c == 0) * c) % 1000, "line", i > ("file" f % (c + 3) ".txt") }'
    git add -A
    git commit -q -m "commit $commit"
done
git checkout -q -b side HEAD~10
seq 1 5000 >side.txt
git add side.txt
git commit -q -m side
git checkout -q main
git merge -q -m merge side
git log --oneline --stat | tail -n 40
git blame file3.txt | cut -c 1-8 | sort | uniq -c
git diff --stat HEAD~8 HEAD
git gc -q --aggressive --prune=now
git fsck --full
git count-objects -v | grep -E '^(count|in-pack|packs|garbage)'
git clone -q . ../copy
git -C ../copy rev-parse HEAD HEAD^{tree}
git grep -c 'line 17' | head -n 20
git rebase -q HEAD~3 side 2>/dev/null || git rebase --abort
git archive --format=tar main | sha256sum
git bundle create -q ../all.bundle --all
git bundle verify -q ../all.bundle
