-- One expression a line, over the columns of test_sql_on_spark.py, as a user of Spark might write it.
i + j * 2 - -i
(i + j) * 2
i - (j - 1)
i - j - 1
i / j
i % j
i div j
-i * -j
- - i
+i
~i & j | 3 ^ l
i << 2 >> 1
shiftrightunsigned(i, 1)
i = j
i == j
i != j
i <> j
i <=> j
i <=> NULL
i IS DISTINCT FROM j
i IS NOT DISTINCT FROM NULL
NOT i = j
NOT p AND q
NOT (p AND q)
!p
p OR q AND NOT p
(p OR q) AND NOT p
p IS TRUE
p IS NOT TRUE
p IS NOT NULL AND NOT q IS NULL
p = q IS NULL
i < j = p
i BETWEEN 1 AND j + 1
i NOT BETWEEN 1 AND 2 OR p
i IN (1, 2, NULL)
i NOT IN (1, 2)
(i, j) IN ((1, 2), (2, 1))
s LIKE 'a%'
s NOT LIKE '%b_'
s LIKE 'x!%%' ESCAPE '!'
s LIKE '%\\%%'
s ILIKE 'A%'
s LIKE ANY ('a%', '%z')
s LIKE ALL ('a%', '%b%')
s NOT LIKE ALL ('a%', '%b%')
s RLIKE '^a\\d+$'
s RLIKE r'^a\d+$'
s NOT RLIKE 'a|b'
s REGEXP '[a-c]+'
regexp_replace(s, '(\\w)(\\d)', '$2$1')
regexp_extract(s, '([a-z]+)([0-9]+)', 2)
s || '-' || i || "double ""quoted"""
'it''s' || 'a\'b' || "x'y"
'adjacent' ' strings'
'tab\there' || 'line\nend' || '\\ and \u0041 and \101'
'percent \% and \_ underscore'
'a; DROP TABLE rides -- HAVING'
r'raw \n \t'
X'1F4A'
1L + 2S + 3Y
-128Y
-9223372036854775808L
1.50BD * 2
1.5D + 2.5F
0.1F
1e3 + .5 + 2.
1E3BD
1.0 / 3
100000000000 * 2
cast(i AS decimal(10, 3)) / 3
cast(d AS int) + d::bigint
cast(s AS varchar(2)) || cast(s AS char(9)) || 'x'
try_cast(s AS int)
cast(i AS string)
cast(arr AS array<string>)
cast(named_struct('x', i, 'y', s) AS struct<x: bigint, y: string>)
cast(m AS map<string, double>)
int(d) + bigint(i) + double(j)
string(i) || boolean(1)
date('2020-02-03')
cast('2020-02-03 04:05:06' AS timestamp)
DATE '2020-02-03' + 1
TIMESTAMP '2020-02-03 04:05:06.789'
TIMESTAMP_NTZ '2020-02-03 04:05:06'
event_time + INTERVAL 1 DAY
event_time - INTERVAL 1 DAY 2 HOURS
event_time - INTERVAL '1 02:03:04' DAY TO SECOND
event_time + INTERVAL '1-2' YEAR TO MONTH
event_time + INTERVAL '90' MINUTE
event_time + i * INTERVAL '1' HOUR
event_time + INTERVAL -3 HOURS
2 * INTERVAL 1 DAY 2 HOURS
event_time - TIMESTAMP '2020-01-01 00:00:00'
event_time > '2020-01-01'
event_time >= DATE '2020-01-01' AND event_time < DATE '2020-01-01' + INTERVAL 1 MONTH
date_trunc('HOUR', event_time)
date_trunc('minute', event_time)
trunc(day, 'MM')
date_format(event_time, 'yyyy-MM-dd HH:mm')
to_date('03/02/2020', 'dd/MM/yyyy')
to_timestamp('2020-02-03 04', 'yyyy-MM-dd HH')
unix_timestamp(event_time)
from_unixtime(l, 'yyyy')
from_utc_timestamp(event_time, 'Europe/Berlin')
dateadd(HOUR, 3, event_time)
date_add(day, 3)
timestampdiff(MINUTE, TIMESTAMP '2020-01-01 00:00:00', event_time)
datediff(day, DATE '2020-01-01')
datediff(WEEK, DATE '2020-01-01', day)
timestampadd(hour, hour, event_time)
hour(event_time) * 100 + minute(event_time)
dayofweek(event_time) + weekofyear(day) + dayofyear(day) + quarter(day)
extract(DOW FROM event_time) + extract(YEAR FROM day) + extract(SECOND FROM event_time)
date_part('MONTH', event_time)
make_timestamp(2020, 1, 2, 3, 4, 5.5)
months_between(event_time, DATE '2019-01-15')
last_day(day)
CASE WHEN i > 1 THEN 'many' WHEN i = 1 THEN 'one' END
CASE i WHEN 1 THEN 'one' WHEN 2 THEN 'two' ELSE s END
CASE WHEN p THEN CASE WHEN q THEN 1 ELSE 2 END ELSE 3 END
if(p, i, j)
coalesce(i, j, 0)
nullif(i, 1)
nvl2(s, i, j)
ifnull(s, 'none')
greatest(i, j, 1)
decode(i, 1, 'one', 2, 'two', 'other')
arr[0]
array(1, 2, 3)[1]
array[0]
arr[i - i] + element_at(arr, 1)
try_element_at(arr, 9)
m['k']
map('a', i)['a']
st.a
st.b.c
rides.st.b.c
rides.i
named_struct('x', i, 'y', s).y
struct(i AS x, s AS y).x
size(arr) + cardinality(m)
array_contains(arr, 1)
transform(arr, x -> x + i)
transform(arr, `an x` -> concat(`an x`, s))
transform(arr, (x, n) -> x * n)
filter(arr, i -> i > 1)
exists(arr, x -> x % 2 = 0)
forall(arr, x -> x IS NOT NULL)
aggregate(arr, 0, (acc, x) -> acc + x)
aggregate(arr, 0, (acc, x) -> acc + x, acc -> acc * 10)
map_filter(m, (k, v) -> v > 0)
sequence(1, 5, 2)
slice(arr, 1, 1)
sort_array(arr, false)
array_sort(arr, (x, y) -> CASE WHEN x < y THEN 1 WHEN x > y THEN -1 ELSE 0 END)
concat_ws(',', s, 'x', NULL)
split(s, '[0-9]')
substring(s, 2)
substring(s, 1, 2)
substring(s FROM 2 FOR 1)
substr(s, -2)
left(s, 1) || right(s, 1)
trim(s)
trim(BOTH 'a' FROM s)
trim(LEADING 'a' FROM s) || trim(TRAILING '1' FROM s)
ltrim('a', s)
overlay(s PLACING 'ZZ' FROM 2 FOR 1)
position('1' IN s)
position('1', s)
locate('1', s, 1)
replace(s, 'a', 'b')
lpad(s, 6, '*')
format_string('%05d|%s', i, s)
initcap(s)
char(65) || chr(66) || ascii(s)
upper(s) COLLATE utf8_lcase = 'A1'
ceil(d) + floor(d) + round(d, 1) + bround(d, 0)
ceil(d, 1)
log(10, 100) + log2(8) + ln(1) + log10(1000)
pow(i, 2) + sqrt(4) + cbrt(27)
mod(i, 2) + pmod(-i, 3) + sign(i) + abs(-i)
hash(s, i)
xxhash64(s)
md5(s) || sha2(s, 256)
crc32(s)
hex(i) || bin(i) || conv('ff', 16, 10)
base64(encode(s, 'UTF-8'))
get_json_object(json, '$.a.b')
from_json(json, 'a struct<b: int>').a.b
to_json(named_struct('x', i))
json_array_length('[1,2]')
str_to_map('a=1,b=2', ',', '=')
map_from_arrays(array('a'), array(i))
typeof(i)
isnan(d)
isnull(s) OR isnotnull(i)
try_divide(i, 0)
try_add(i, 1)
float('nan')
double('infinity') > 1
width_bucket(d, 0, 10, 5)
bit_count(i) + getbit(i, 0)
`limit` + 1
`odd ``name` * 2
`hour` + hour
assert_true(true) IS NULL
'' || '''' || 'a''' || '''b' || 'x''y' 'z''z'
concat('it''s', "x''y")
