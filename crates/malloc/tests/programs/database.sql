-- Inserts, indexes, joins, windows, text, blobs, rollback and vacuum on a database file.
PRAGMA cache_size = 500;
CREATE TABLE person(id INTEGER PRIMARY KEY, name TEXT, born INTEGER, note BLOB);
CREATE TABLE visit(person INTEGER REFERENCES person, day INTEGER, place TEXT);
BEGIN;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60000)
INSERT INTO person SELECT i, printf('name %08x', i * 2654435761 % 4294967296), 1900 + i * 37 % 120, zeroblob(i % 400) FROM n;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 120000)
INSERT INTO visit SELECT i * 7919 % 60000 + 1, i * 31 % 3650, printf('place %d', i % 977) FROM n;
COMMIT;
CREATE INDEX by_name ON person(name);
CREATE INDEX by_person ON visit(person, day);
ANALYZE;
SELECT count(*), sum(born), sum(length(note)) FROM person;
SELECT place, count(*), count(DISTINCT person) FROM visit JOIN person ON person.id = visit.person
 WHERE born BETWEEN 1950 AND 1960 GROUP BY place ORDER BY 2 DESC, 1 LIMIT 10;
SELECT born, avg(c) FROM (SELECT born, count(*) OVER (PARTITION BY person) AS c FROM visit JOIN person ON id = person)
 GROUP BY born ORDER BY born LIMIT 10;
SELECT name FROM person WHERE name LIKE 'name 00%' ORDER BY name LIMIT 5;
BEGIN;
DELETE FROM person WHERE id % 3 = 0;
SELECT count(*) FROM person;
ROLLBACK;
DELETE FROM visit WHERE day % 2 = 0;
UPDATE person SET name = name || group_concat_of FROM (SELECT person AS p, group_concat(place, '/') AS group_concat_of FROM visit
 GROUP BY person) WHERE p = id;
VACUUM;
SELECT sum(length(name)), max(length(name)) FROM person;
SELECT json_group_array(json_object('id', id, 'born', born)) FROM (SELECT * FROM person LIMIT 50);
SELECT quote(zeroblob(10)), length(replace(hex(zeroblob(500000)), '0', 'ab'));
PRAGMA integrity_check;
