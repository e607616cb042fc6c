-- A database in memory: inserting, indexing, joining, updating, deleting. Prints checksums.
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, city TEXT, notes TEXT);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, amount INTEGER, item TEXT);
BEGIN;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60000)
INSERT INTO customers SELECT i, 'customer ' || (i * 7919 % 60013), 'city ' || (i % 311), hex(i * 104729) || substr('..............................', 1, i % 30) FROM n;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 250000)
INSERT INTO orders SELECT i, i * 31 % 60000 + 1, i * 17 % 1009, 'item ' || (i * 13 % 4001) FROM n;
COMMIT;
CREATE INDEX orders_by_customer ON orders (customer);
CREATE INDEX customers_by_name ON customers (name);
SELECT count(*), sum(amount) FROM orders JOIN customers ON customers.id = orders.customer WHERE city = 'city 17';
SELECT city, sum(amount) AS total FROM orders JOIN customers ON customers.id = orders.customer GROUP BY city ORDER BY total DESC, city LIMIT 5;
SELECT item, count(*) FROM orders WHERE amount > 500 GROUP BY item ORDER BY count(*) DESC, item LIMIT 5;
UPDATE customers SET notes = notes || ' seen' WHERE id % 3 = 0;
DELETE FROM orders WHERE amount < 200;
SELECT count(*), sum(length(notes)) FROM customers;
SELECT count(DISTINCT item), max(id) FROM orders;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
SELECT sum(c.id) FROM n JOIN customers c ON c.name = 'customer ' || (n.i * 2);
